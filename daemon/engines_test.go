package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/stage"
	"github.com/kevlard/kevlard/topology"
)

// puppet is an engine that does what the test says.
type puppet struct {
	info    EngineInfo
	forward func(ctx context.Context, b stage.Batch) ([][]byte, []kevlard.Sampled, error)
	cells   func(ctx context.Context, cell, n int, b []byte) error // both reads and writes
	deaf    bool                                                   // SIGKILL does not help
	done    chan struct{}
	once    sync.Once
	exit    EngineExit
}

func (p *puppet) Info() EngineInfo { return p.info }

func (p *puppet) Forward(ctx context.Context, b stage.Batch) ([][]byte, []kevlard.Sampled, error) {
	return p.forward(ctx, b)
}

func (p *puppet) ReadCells(ctx context.Context, cell, n int, dst []byte) error {
	return p.cells(ctx, cell, n, dst)
}

func (p *puppet) WriteCells(ctx context.Context, cell, n int, src []byte) error {
	return p.cells(ctx, cell, n, src)
}

func (p *puppet) Done() <-chan struct{} { return p.done }

func (p *puppet) Exit() EngineExit { return p.exit }

func (p *puppet) Kill() {
	if !p.deaf {
		p.die(EngineExit{Reason: "signal: killed"})
	}
}

func (p *puppet) Close() error { p.die(EngineExit{Reason: "closed"}); return nil }

func (p *puppet) die(x EngineExit) {
	p.once.Do(func() {
		p.exit = x
		close(p.done)
	})
}

type launchFunc func(context.Context, LaunchSpec) (Engine, error)

func (f launchFunc) Launch(ctx context.Context, s LaunchSpec) (Engine, error) { return f(ctx, s) }

// bench runs the engines part around one puppet, in a synctest bubble.
type bench struct {
	*engines
	t      *testing.T
	stage  kevlard.StageKey
	events chan node.Event
	puppet *puppet
}

func withBench(t *testing.T, launch launchFunc, f func(*bench)) {
	synctest.Test(t, func(t *testing.T) {
		a := AssignedStage{Model: topology.Model{ID: kevlard.Digest{1}, Layers: 4, Context: 64, Vocab: 10}, Layers: kevlard.Layers{Lo: 0, Hi: 2}, Width: 8, CellsWanted: 64}
		b := &bench{t: t, stage: a.Key(), events: make(chan node.Event, 100)}
		b.puppet = &puppet{info: EngineInfo{Width: 8, Cells: 64, CellBytes: 16, PID: 42}, done: make(chan struct{}), forward: func(context.Context, stage.Batch) ([][]byte, []kevlard.Sampled, error) {
			return [][]byte{make([]byte, 8)}, nil, nil
		}}
		if launch == nil {
			launch = func(context.Context, LaunchSpec) (Engine, error) { return b.puppet, nil }
		}
		b.engines = newEngines(Config{Assigned: []AssignedStage{a}, Threads: 1}, launch,
			func(ev node.Event) bool { b.events <- ev; return true }, func(kevlard.StageKey, time.Duration) {}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.run(ctx) }()
		b.start(node.StartEngine{Stage: b.stage, Run: 1})
		f(b)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func (b *bench) batch(id uint64) {
	b.runBatch(node.RunBatch{Stage: b.stage, Run: 1, Batch: stage.Batch{ID: id, Parts: []stage.Part{{Tokens: []kevlard.Token{1}}}}})
}

func next[E node.Event](b *bench) E {
	b.t.Helper()
	ev := <-b.events
	e, ok := ev.(E)
	if !ok {
		b.t.Fatalf("event %T %+v, want %T", ev, ev, e)
	}
	return e
}

func TestEngineLife(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		if r := next[node.EngineReady](b); r.Cells != 64 || r.CellBytes != 16 || r.Run != 1 {
			t.Errorf("ready: %+v", r)
		}
		for id := range uint64(3) {
			b.batch(id)
			if d := next[node.BatchDone](b); d.Batch != id {
				t.Errorf("batch %d done, want %d", d.Batch, id)
			}
		}
		if l := b.loaded(); len(l) != 1 || l[0].info.PID != 42 {
			t.Errorf("loaded %+v", l)
		}
	})
}

// TestExitMidBatchIsReportedAtOnce kills an engine whose Forward does not notice
// for a minute.
func TestExitMidBatchIsReportedAtOnce(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		next[node.EngineReady](b)
		b.puppet.forward = func(context.Context, stage.Batch) ([][]byte, []kevlard.Sampled, error) {
			time.Sleep(time.Minute)
			return nil, nil, errors.New("broken pipe")
		}
		b.batch(1)
		synctest.Wait()
		begin := time.Now()
		b.puppet.die(EngineExit{Poisonous: true, Reason: "signal: aborted"})
		if x := next[node.EngineExited](b); !x.Poisonous || x.Reason != "signal: aborted" {
			t.Errorf("exit %+v", x)
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("reported after %v", took)
		}
		b.batch(2) // for an engine that is gone: dropped
		time.Sleep(2 * time.Minute)
		if len(b.events) != 0 {
			t.Errorf("%d events of a dead engine", len(b.events))
		}
	})
}

func TestFailedBatchIsPoisonous(t *testing.T) {
	for name, forward := range map[string]func(context.Context, stage.Batch) ([][]byte, []kevlard.Sampled, error){
		"out of memory": func(context.Context, stage.Batch) ([][]byte, []kevlard.Sampled, error) {
			return nil, nil, errors.New("out of memory")
		},
		"rows for 0 parts": func(context.Context, stage.Batch) ([][]byte, []kevlard.Sampled, error) { return nil, nil, nil },
		"7 bytes of rows": func(context.Context, stage.Batch) ([][]byte, []kevlard.Sampled, error) {
			return [][]byte{make([]byte, 7)}, nil, nil
		},
		"1 tokens, want 0": func(context.Context, stage.Batch) ([][]byte, []kevlard.Sampled, error) {
			return [][]byte{make([]byte, 8)}, []kevlard.Sampled{{Token: 1}}, nil
		},
	} {
		withBench(t, nil, func(b *bench) {
			next[node.EngineReady](b)
			b.puppet.forward = forward
			b.batch(1)
			if x := next[node.EngineExited](b); !x.Poisonous || !strings.Contains(x.Reason, name) {
				t.Errorf("%s: exit %+v", name, x)
			}
			<-b.puppet.Done()
		})
	}
}

// TestSampledIsChecked: an engine's tokens and logprobs are those that were asked for,
// or the machine does not get them.
func TestSampledIsChecked(t *testing.T) {
	some := &kevlard.Logprobs{Chosen: -1, Top: []kevlard.TokenLogprob{{Token: 3, Logprob: -0.5}}}
	asked := kevlard.Sampling{Logprobs: true, TopLogprobs: 1}
	for _, c := range []struct {
		say     string // in the error; "" for none
		sampled kevlard.Sampled
		asked   kevlard.Sampling
	}{
		{"", kevlard.Sampled{Token: 9}, kevlard.Sampling{}},
		{"", kevlard.Sampled{Token: 9, Logprobs: some}, asked},
		{"", kevlard.Sampled{Token: 9, Logprobs: some}, kevlard.Sampling{Logprobs: true, TopLogprobs: 20}},
		{"it is 10, the vocabulary has 10", kevlard.Sampled{Token: 10}, kevlard.Sampling{}},
		{"it is -1", kevlard.Sampled{Token: -1}, kevlard.Sampling{}},
		{"logprobs: false, want true", kevlard.Sampled{Token: 9}, asked},
		{"logprobs: true, want false", kevlard.Sampled{Token: 9, Logprobs: some}, kevlard.Sampling{}},
		{"1 top_logprobs, 0 were asked for", kevlard.Sampled{Token: 9, Logprobs: some}, kevlard.Sampling{Logprobs: true}},
		{"at most 0", kevlard.Sampled{Token: 9, Logprobs: &kevlard.Logprobs{Chosen: 1}}, asked},
		{"token 10", kevlard.Sampled{Token: 9, Logprobs: &kevlard.Logprobs{Top: []kevlard.TokenLogprob{{Token: 10}}}}, asked},
	} {
		err := checkSampled(c.sampled, c.asked, 10)
		if (err == nil) != (c.say == "") || err != nil && !strings.Contains(err.Error(), c.say) {
			t.Errorf("%+v for %+v: error %v, want %q", c.sampled, c.asked, err, c.say)
		}
	}
}

func TestWantOfMemoryIsNotPoisonous(t *testing.T) {
	withBench(t, nil, func(b *bench) {
		next[node.EngineReady](b)
		b.puppet.forward = func(context.Context, stage.Batch) ([][]byte, []kevlard.Sampled, error) {
			return nil, nil, fmt.Errorf("%w: 7 MiB", ErrNoMemory)
		}
		b.batch(1)
		if x := next[node.EngineExited](b); x.Poisonous || !strings.Contains(x.Reason, "7 MiB") {
			t.Errorf("exit %+v", x)
		}
	})
}

func TestKillFrozenEngine(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		withBench(t, nil, func(b *bench) {
			next[node.EngineReady](b)
			b.puppet.deaf = deaf
			b.puppet.forward = func(ctx context.Context, _ stage.Batch) ([][]byte, []kevlard.Sampled, error) {
				select {
				case <-b.puppet.done:
				case <-ctx.Done():
				}
				return nil, nil, errors.New("gone")
			}
			b.batch(1)
			synctest.Wait()
			begin := time.Now()
			b.killEngine(node.KillEngine{Stage: b.stage, Run: 1})
			b.killEngine(node.KillEngine{Stage: b.stage, Run: 1})
			x := next[node.EngineExited](b)
			want := time.Duration(0)
			if deaf {
				want = killWait
			}
			if took := time.Since(begin); took != want || x.Poisonous || strings.Contains(x.Reason, "pid 42") != deaf {
				t.Errorf("deaf %v: exit %+v after %v, want %v", deaf, x, took, want)
			}
			b.puppet.die(EngineExit{})
		})
	}
}

func TestKillWhileLoading(t *testing.T) {
	launch := func(ctx context.Context, s LaunchSpec) (Engine, error) {
		for i := range 1000 {
			s.Progress(i)
			select {
			case <-ctx.Done():
				return nil, fmt.Errorf("load: %w", ctx.Err())
			case <-time.After(10 * time.Millisecond):
			}
		}
		return nil, errors.New("not killed")
	}
	withBench(t, launch, func(b *bench) {
		time.Sleep(time.Second)
		b.killEngine(node.KillEngine{Stage: b.stage, Run: 1})
		reports := 0
		for {
			ev := <-b.events
			if x, ok := ev.(node.EngineExited); ok {
				if x.Reason != errKilled.Error() {
					t.Errorf("exit %+v", x)
				}
				break
			}
			if _, ok := ev.(node.EngineLoading); !ok {
				t.Fatalf("event %T", ev)
			}
			reports++
		}
		if reports < 8 || reports > 12 {
			t.Errorf("%d reports of progress in a second, want one each %v", reports, progressEvery)
		}
	})
}

func TestWrongEngineIsRefused(t *testing.T) {
	p := &puppet{info: EngineInfo{Width: 16, Cells: 64}, done: make(chan struct{})}
	withBench(t, func(context.Context, LaunchSpec) (Engine, error) { return p, nil }, func(b *bench) {
		if x := next[node.EngineExited](b); !strings.Contains(x.Reason, "rows of 16 bytes") {
			t.Errorf("exit %+v", x)
		}
		<-p.done
	})
}
