//go:build cgo

package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/engine/sampler"
	"github.com/kevlard/kevlard/model"
)

// roleVariable makes the test binary an engine, or a parent that starts one.
const roleVariable = "KEVLARD_TEST_ROLE"

func TestMain(m *testing.M) {
	slog.SetLogLoggerLevel(slog.LevelWarn) // of the stages in this process
	switch os.Getenv(roleVariable) {
	case "":
		os.Exit(m.Run())
	case "engine":
		if err := Serve(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "parent":
		m, err := model.Load(os.Args[1], "")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		p, err := Start(context.Background(), os.Args[0], nil, NewSpec(m, kevlard.Layers{Hi: 1}, 1, 64, 8), ProcessOptions{Env: []string{roleVariable + "=engine"}})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(p.PID())
		<-p.Done()
	}
}

// startEngine starts this binary as an engine.
func startEngine(t testing.TB, spec Spec, env ...string) *Process {
	t.Helper()
	p, err := Start(t.Context(), os.Args[0], nil, spec, ProcessOptions{Env: append(env, roleVariable+"=engine")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		<-p.Done()
	})
	return p
}

func smallSpec(t testing.TB, l kevlard.Layers) Spec {
	t.Helper()
	return specOf(t, modelPath(t, "fairy-7m-q8_0.gguf"), l, 512, 64)
}

// run16 is a part of 16 fixed tokens.
func run16(sample bool) Part {
	p := Part{Cell: 7, N: 16, Sample: sample}
	for i := range p.N {
		p.Tokens = append(p.Tokens, kevlard.Token(100+i))
	}
	return p
}

// TestProcessEqualsStage: two processes compute, store and move the same bits as
// two stages in this process.
func TestProcessEqualsStage(t *testing.T) {
	ctx := t.Context()
	var rows [2][]byte
	var token [2]kevlard.Token
	for i, l := range split(8, 2) {
		p := startEngine(t, smallSpec(t, l))
		s, err := Open(smallSpec(t, l), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if p.Info() != s.Info() {
			t.Fatalf("process says %+v, stage says %+v", p.Info(), s.Info())
		}
		part := run16(i == 1)
		if i == 1 {
			part.Tokens = nil
			part.Sampling.Logprobs, part.Sampling.TopLogprobs = true, 3
		}
		a, err := p.Forward(ctx, Batch{Parts: []Part{part}, Rows: rows[0]})
		if err != nil {
			t.Fatal(err)
		}
		b, err := s.Forward(Batch{Parts: []Part{part}, Rows: rows[1]})
		if err != nil {
			t.Fatal(err)
		}
		if rows = [2][]byte{a.Rows, b.Rows}; !bytes.Equal(a.Rows, b.Rows) {
			t.Fatal("rows differ")
		}
		if i == 1 {
			token = [2]kevlard.Token{a.Sampled[0].Token, b.Sampled[0].Token}
			if got := a.Sampled[0].Logprobs; got == nil || len(got.Top) != 3 || !reflect.DeepEqual(got, b.Sampled[0].Logprobs) {
				t.Fatalf("the process has logprobs %+v, the stage %+v", got, b.Sampled[0].Logprobs)
			}
			if best := a.Sampled[0].Logprobs.Top[0]; best.Token != token[0] || best.Logprob != a.Sampled[0].Logprobs.Chosen {
				t.Fatalf("the greedy choice is token %d, the likeliest %+v", token[0], best)
			}
		}
		// What the batch wrote; then every cell of the pool, through several pieces,
		// moved about.
		size := p.Info().CellBytes
		kv := [2][]byte{make([]byte, 16*size), make([]byte, 16*size)}
		err = errors.Join(p.Read(ctx, 7, 16, kv[0]), s.Read(7, 16, kv[1]))
		if err != nil || !bytes.Equal(kv[0], kv[1]) {
			t.Fatalf("cells differ (error %v)", err)
		}
		n := p.Info().Cells - 1
		all := make([]byte, (n+1)*size)
		for j := range all {
			all[j] = byte(j ^ j>>8 ^ j>>16)
		}
		kv = [2][]byte{make([]byte, n*size), make([]byte, n*size)}
		err = errors.Join(
			p.Write(ctx, 0, n+1, all), s.Write(0, n+1, all),
			p.Copy(ctx, 0, 3, n-3), s.Copy(0, 3, n-3),
			p.Read(ctx, 1, n, kv[0]), s.Read(1, n, kv[1]))
		if err != nil || !bytes.Equal(kv[0], kv[1]) || n*size <= kvPiece {
			t.Fatalf("cells differ, or %d bytes are no two pieces (error %v)", n*size, err)
		}
		// Cell 1 is what cell 4 was; the first run is the first layer's keys.
		if row := size / (2 * l.Len()); !bytes.Equal(kv[0][:row], all[4*row:5*row]) {
			t.Fatal("the copy moved the wrong cells")
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Forward(ctx, Batch{Parts: []Part{part}, Rows: rows[0]}); !errors.Is(err, ErrDead) && !errors.Is(err, ErrBatch) {
			t.Fatalf("forward after close: %v", err)
		}
	}
	if token[0] != token[1] {
		t.Errorf("tokens %v differ", token)
	}
}

// TestRefusals: bad requests are refused and the stage lives on.
func TestRefusals(t *testing.T) {
	p := startEngine(t, smallSpec(t, kevlard.Layers{Lo: 0, Hi: 2}))
	ctx := t.Context()
	ok := run16(false)
	for name, change := range map[string]func(*Part){
		"no rows":         func(p *Part) { p.N, p.Tokens = 0, nil },
		"too many rows":   func(p *Part) { p.N, p.Tokens = 65, make([]kevlard.Token, 65) },
		"negative cell":   func(p *Part) { p.Cell = -1 },
		"huge cell":       func(p *Part) { p.Cell = 1 << 62 },
		"huge position":   func(p *Part) { p.Pos = 1<<63 - 1 },
		"past the pool":   func(p *Part) { p.Pos = 512 - 7 - 15 },
		"too few tokens":  func(p *Part) { p.Tokens = p.Tokens[1:] },
		"unknown token":   func(p *Part) { p.Tokens = append(slices.Clone(p.Tokens[1:]), 2048) },
		"negative token":  func(p *Part) { p.Tokens = append(slices.Clone(p.Tokens[1:]), -1) },
		"not last":        func(p *Part) { p.Sample = true },
		"negative number": func(p *Part) { p.N = -5 },
	} {
		bad := ok
		change(&bad)
		if _, err := p.Forward(ctx, Batch{Parts: []Part{ok, bad}}); !errors.Is(err, ErrBatch) {
			t.Errorf("%s: error is %v, want ErrBatch", name, err)
		}
	}
	if _, err := p.Forward(ctx, Batch{Parts: []Part{ok}, Rows: make([]byte, 4)}); !errors.Is(err, ErrBatch) {
		t.Errorf("rows at the first stage: %v", err)
	}
	if _, err := p.Forward(ctx, Batch{}); !errors.Is(err, ErrBatch) {
		t.Errorf("no parts: %v", err)
	}
	buf := make([]byte, p.Info().CellBytes)
	for _, err := range []error{
		p.Read(ctx, 512, 1, buf), p.Read(ctx, 0, 2, buf), p.Read(ctx, -1, 1, buf), p.Write(ctx, 0, -1, nil),
		p.Copy(ctx, 500, 0, 13), p.Copy(ctx, 0, 500, 13), p.Copy(ctx, 1<<62, 0, 1<<62),
	} {
		if !errors.Is(err, ErrRange) {
			t.Errorf("cells outside the pool: %v", err)
		}
	}
	if _, err := p.Forward(ctx, Batch{Parts: []Part{ok}}); err != nil {
		t.Errorf("after the refusals: %v", err)
	}
}

// TestBadSampling: parameters are checked before anything is computed.
func TestBadSampling(t *testing.T) {
	p := startEngine(t, smallSpec(t, kevlard.Layers{Lo: 0, Hi: 8}))
	part := run16(true)
	part.Sampling.TopP = 2
	if _, err := p.Forward(t.Context(), Batch{Parts: []Part{part}}); !errors.Is(err, ErrBatch) || !strings.Contains(err.Error(), "top_p") {
		t.Errorf("top_p 2: %v", err)
	}
	for want, change := range map[string]func(*Part){
		"logit_bias for token 2048: want 0 to 2047": func(p *Part) { p.Sampling.Bias = []kevlard.TokenBias{{Token: 2048, Bias: 1}} },
		"ban of token 9999":                         func(p *Part) { p.Sampling.Ban = []kevlard.Token{9999} },
		"history of 3 tokens: want the latest 16":   func(p *Part) { p.Sampling.Presence, p.History = 1, make([]kevlard.Token, 3) },
	} {
		bad := part
		bad.Sampling = kevlard.Sampling{}
		change(&bad)
		if _, err := p.Forward(t.Context(), Batch{Parts: []Part{bad}}); !errors.Is(err, ErrBatch) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	many := make([]Part, 512) // 512 histories do not fit in a frame
	for i := range many {
		many[i] = Part{N: 1, Tokens: []kevlard.Token{1}, Sample: true, Sampling: kevlard.Sampling{Presence: 1}, History: make([]kevlard.Token, sampler.Window)}
	}
	if _, err := p.Forward(t.Context(), Batch{Parts: many}); !errors.Is(err, ErrBatch) {
		t.Errorf("a frame too large: %v", err)
	}
	part.Sampling.TopP = 0
	if r, err := p.Forward(t.Context(), Batch{Parts: []Part{part}}); err != nil || len(r.Sampled) != 1 {
		t.Errorf("after it: %v, %v", r.Sampled, err)
	}
}

// TestStartErrors: what is wrong with a spec or a child is said by Start.
func TestStartErrors(t *testing.T) {
	good := smallSpec(t, kevlard.Layers{Lo: 0, Hi: 2})
	for want, change := range map[string]func(*Spec){
		"threads is 0":      func(s *Spec) { s.Threads = 0 },
		"no such file":      func(s *Spec) { s.Path = "nowhere.gguf" },
		"has layers [0,8)":  func(s *Spec) { s.Layers.Hi = 9 },
		"cells is 16777217": func(s *Spec) { s.Cells = 1<<24 + 1 },
	} {
		spec := good
		change(&spec)
		_, err := Start(t.Context(), os.Args[0], nil, spec, ProcessOptions{Env: []string{roleVariable + "=engine"}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	if _, err := Start(t.Context(), "/nonexistent", nil, good, ProcessOptions{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing executable: %v", err)
	}
	if _, err := Start(t.Context(), "/bin/false", nil, good, ProcessOptions{}); !errors.Is(err, ErrDead) || !strings.Contains(err.Error(), "exit code 1") {
		t.Errorf("a child that exits: %v", err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("enough"))
	defer cancel()
	if _, err := Start(ctx, "/bin/sleep", []string{"60"}, good, ProcessOptions{}); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Errorf("a child that never answers: %v", err)
	}
}

// TestKillMidForward: SIGKILL ends the running Forward and is not poisonous.
func TestKillMidForward(t *testing.T) {
	p := startEngine(t, smallSpec(t, kevlard.Layers{Lo: 0, Hi: 2}))
	if err := syscall.Kill(p.PID(), syscall.SIGSTOP); err != nil { // so that the batch can't end
		t.Fatal(err)
	}
	failed := make(chan error, 2)
	for range 2 { // one in flight, one waiting for the slot
		go func() {
			_, err := p.Forward(context.Background(), Batch{Parts: []Part{run16(false)}})
			failed <- err
		}()
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("gone away"))
	if _, err := p.Forward(ctx, Batch{Parts: []Part{run16(false)}}); err == nil || err.Error() != "gone away" {
		t.Errorf("a caller that left: %v", err)
	}
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-failed; !errors.Is(err, ErrDead) || !strings.Contains(err.Error(), "killed") {
			t.Errorf("forward: %v", err)
		}
	}
	<-p.Done()
	if e := p.Exit(); e.Signal != syscall.SIGKILL || e.Poisonous || e.Code != -1 {
		t.Errorf("exit %+v", e)
	}
	if err := p.Read(t.Context(), 0, 1, make([]byte, p.Info().CellBytes)); !errors.Is(err, ErrDead) {
		t.Errorf("read of a dead engine: %v", err)
	}
}

// TestCancel: a caller that leaves does not disturb the next one.
func TestCancel(t *testing.T) {
	p := startEngine(t, smallSpec(t, kevlard.Layers{Lo: 0, Hi: 2}))
	want, err := p.Forward(t.Context(), Batch{Parts: []Part{run16(false)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for { // a thread that runs stops a little later
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		if err != nil {
			t.Fatal(err)
		}
		if _, state, _ := strings.Cut(string(b), ") "); strings.HasPrefix(state, "T") {
			break
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	other := run16(false)
	slices.Reverse(other.Tokens)
	other.Cell = 100
	if _, err := p.Forward(ctx, Batch{Parts: []Part{other}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.PID(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Forward(t.Context(), Batch{Parts: []Part{run16(false)}}); err != nil || !bytes.Equal(got.Rows, want.Rows) {
		t.Errorf("the next forward: rows differ or error %v", err)
	}
}

// TestPoison: an abort in the child is a real SIGABRT, and poisonous.
func TestPoison(t *testing.T) {
	p := startEngine(t, smallSpec(t, kevlard.Layers{Lo: 0, Hi: 2}), faultVariable+"=abort:666")
	if _, err := p.Forward(t.Context(), Batch{Parts: []Part{run16(false)}}); err != nil {
		t.Fatal(err)
	}
	bad := run16(false)
	bad.Tokens[9] = 666
	if _, err := p.Forward(t.Context(), Batch{Parts: []Part{run16(false), bad}}); !errors.Is(err, ErrDead) || !strings.Contains(err.Error(), "aborted") {
		t.Errorf("forward: %v", err)
	}
	if e := p.Exit(); e.Signal != syscall.SIGABRT || !e.Poisonous || !strings.Contains(e.Message, "token 666") {
		t.Errorf("exit %+v", e)
	}
}

// TestOrphan (K76): when the parent is SIGKILLed the kernel ends the engine, even
// a stopped one that can't see its socket close.
func TestOrphan(t *testing.T) {
	parent := exec.Command(os.Args[0], modelPath(t, "fairy-7m-q8_0.gguf"))
	parent.Env = append(os.Environ(), roleVariable+"=parent")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(syscall.Kill(pid, syscall.SIGSTOP), parent.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // killed
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
	if err != nil || n != 1 {
		t.Errorf("engine %d outlives its parent (poll %d, %v)", pid, n, err)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// TestPriority: all threads of a child are SCHED_BATCH and nice 10, it leads its
// process group and writes no core.
func TestPriority(t *testing.T) {
	p := startEngine(t, smallSpec(t, kevlard.Layers{Lo: 0, Hi: 1}))
	dir := fmt.Sprintf("/proc/%d/task", p.PID())
	tasks, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile(dir + "/" + task.Name() + "/stat")
		if err != nil {
			continue // the thread ended
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+2:]))
		// Field 3 of stat is f[0]: nice is field 19, policy field 41.
		if f[16] != "10" || f[38] != strconv.Itoa(unix.SCHED_BATCH) {
			t.Errorf("thread %s has nice %s and policy %s", task.Name(), f[16], f[38])
		}
	}
	if g, err := syscall.Getpgid(p.PID()); err != nil || g != p.PID() {
		t.Errorf("process group %d (%v), want %d", g, err, p.PID())
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", p.PID())); err != nil || !strings.Contains(string(b), "Max core file size        0 ") {
		t.Errorf("core limit is not 0 (%v)", err)
	}
}

// TestChurn: starting and killing leaks no descriptor, goroutine, mapping or
// child.
func TestChurn(t *testing.T) {
	spec := smallSpec(t, kevlard.Layers{Lo: 0, Hi: 1})
	count := func() (fds, maps, threads int) {
		runtime.GC()
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		m, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return len(d), bytes.Count(m, []byte("kevlard-engine")), runtime.NumGoroutine()
	}
	cycle := func(i int) {
		p, err := Start(t.Context(), os.Args[0], nil, spec, ProcessOptions{Env: []string{roleVariable + "=engine"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Forward(t.Context(), Batch{Parts: []Part{run16(false)}}); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			p.Kill()
			<-p.Done()
		} else if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	cycle(0)
	fds, maps, routines := count()
	for i := range 20 {
		cycle(i)
	}
	if f, m, r := count(); f > fds || m > maps || r > routines {
		t.Errorf("after 20 cycles %d descriptors, %d mappings, %d goroutines; before %d, %d, %d", f, m, r, fds, maps, routines)
	}
}

// TestResident: a stage keeps its own units' bytes and little more.
func TestResident(t *testing.T) {
	small := startEngine(t, smallSpec(t, kevlard.Layers{Lo: 3, Hi: 4}))
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", small.PID()))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		t.Fatal(err)
	}
	resident *= int64(os.Getpagesize())
	if limit := small.Info().WeightBytes + small.Info().KVBytes + 60<<20; resident > limit {
		t.Errorf("resident %d bytes, want at most %d", resident, limit)
	}
	t.Logf("resident %.1f MiB, weights %.1f MiB, KV %.1f MiB, virtual %.0f MiB", float64(resident)/(1<<20), float64(small.Info().WeightBytes)/(1<<20), float64(small.Info().KVBytes)/(1<<20), float64(size*int64(os.Getpagesize()))/(1<<20))
}
