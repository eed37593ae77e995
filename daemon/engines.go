package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/stage"
)

// errKilled is the cause of an engine's context when the machine had it killed.
var errKilled = errors.New("killed: the engine did not answer")

// engines carries out StartEngine, KillEngine, RunBatch, Export and Load. Its
// methods never block; run owns the goroutines of each engine life.
type engines struct {
	self     kevlard.NodeID
	launcher Launcher
	threads  int
	post     func(node.Event) bool
	observe  func(kevlard.StageKey, time.Duration) // one batch
	copies   *copies
	reject   func(reason string, from kevlard.NodeID, detail string) // KV that is not used
	log      *slog.Logger
	wake     chan struct{} // capacity 1: pending is not empty
	// fetch gets the weights of a stage from peers, and says how it is loaded; nil: no
	// weights are fetched. It tells the progress in permille,
	// and whether it waits for something that will end.
	fetch func(ctx context.Context, key kevlard.StageKey, progress func(permille int, waits bool)) (AssignedStage, error)

	mu       sync.Mutex
	assigned map[kevlard.StageKey]AssignedStage // by configuration
	local    map[kevlard.Digest]LocalModel      // whose stages can be adopted
	pending  []*engineLife                      // bounded by the stages held
	lives    map[engineID]*engineLife
}

// engineID names one life of a stage's engine.
type engineID struct {
	stage kevlard.StageKey
	run   uint64
}

// engineLife is one engine from launch to exit.
type engineLife struct {
	id     engineID
	device int              // index in the node's devices
	work   chan stage.Batch // capacity 1: at most one batch is under way
	kill   chan struct{}    // closed once
	once   sync.Once

	transfers *transfers

	mu   sync.Mutex
	info EngineInfo // zero until loaded
	fail error      // why a batch failed while the engine lived
}

func newEngines(cfg Config, l Launcher, post func(node.Event) bool, observe func(kevlard.StageKey, time.Duration), log *slog.Logger) *engines {
	e := &engines{
		self: cfg.Name, launcher: l, assigned: map[kevlard.StageKey]AssignedStage{}, local: map[kevlard.Digest]LocalModel{},
		threads: cfg.Threads, post: post, observe: observe, log: log,
		wake: make(chan struct{}, 1), lives: map[engineID]*engineLife{},
	}
	for _, a := range cfg.Assigned {
		e.assigned[a.Key()] = a
	}
	return e
}

// offer replaces the models whose stages can be adopted. Engines that run keep what they
// have.
func (e *engines) offer(models []LocalModel) {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.local)
	for _, m := range models {
		e.local[m.Model.ID] = m
	}
}

// find says how a stage is loaded: as it was configured, or from a model that is known
// here; and whether its weights are on this disk.
func (e *engines) find(key kevlard.StageKey) (a AssignedStage, here bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a, ok := e.assigned[key]; ok {
		return a, true, nil
	}
	m, ok := e.local[key.Model]
	if !ok {
		return AssignedStage{}, false, fmt.Errorf("the weights of model %s are not here: no file in [models] dirs has them", key.Model.Short())
	}
	return m.stage(key.Layers), m.has(key.Layers), nil
}

// fetchShare is how much of the progress of a load is that of its fetch, in permille: a
// network is slower than a disk.
const fetchShare = 900

// source says how a stage is loaded, once its weights are on this disk; progress goes from
// the returned number on when they are read.
func (e *engines) source(ctx context.Context, key kevlard.StageKey, progress func(permille int, waits bool)) (a AssignedStage, done int, err error) {
	a, here, err := e.find(key)
	if here || e.fetch == nil {
		return a, 0, err
	}
	a, err = e.fetch(ctx, key, func(permille int, waits bool) { progress(permille*fetchShare/1000, waits) })
	progress(fetchShare, false)
	return a, fetchShare, err
}

func (e *engines) start(ev node.StartEngine) {
	l := &engineLife{id: engineID{ev.Stage, ev.Run}, device: ev.Device, work: make(chan stage.Batch, 1), kill: make(chan struct{}), transfers: newTransfers()}
	e.mu.Lock()
	e.pending = append(e.pending, l)
	e.lives[l.id] = l
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default: // run has not yet looked
	}
}

// killEngine and runBatch do nothing when the engine is gone: its exit is in the
// inbox.
func (e *engines) killEngine(ev node.KillEngine) {
	if l := e.life(engineID{ev.Stage, ev.Run}); l != nil {
		l.once.Do(func() { close(l.kill) })
	}
}

func (e *engines) runBatch(ev node.RunBatch) {
	l := e.life(engineID{ev.Stage, ev.Run})
	if l == nil {
		return
	}
	select {
	case l.work <- ev.Batch:
	default:
		panic(fmt.Sprintf("daemon: batch %d for engine %d of stage %v while another one is under way", ev.Batch.ID, ev.Run, ev.Stage.Layers))
	}
}

func (e *engines) life(id engineID) *engineLife {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lives[id]
}

// loaded lists the engines that run now, by stage.
func (e *engines) loaded() []loadedEngine {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []loadedEngine
	for id, l := range e.lives {
		l.mu.Lock()
		if l.info.Cells > 0 {
			out = append(out, loadedEngine{id.stage, l.info})
		}
		l.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b loadedEngine) int {
		return cmp.Or(a.stage.Compare(b.stage), cmp.Compare(a.info.PID, b.info.PID))
	})
	return out
}

// cellsInUse returns the bytes of the cells that sessions have at the engines here.
func (e *engines) cellsInUse(s *snapshot) (n int64) {
	for _, l := range e.loaded() {
		for _, st := range s.node.Stages {
			if st.Key == l.stage {
				n += int64(max(0, l.info.Cells-st.FreeCells)) * int64(l.info.CellBytes)
			}
		}
	}
	return n
}

type loadedEngine struct {
	stage kevlard.StageKey
	info  EngineInfo
}

// run gives each started engine a goroutine, until ctx ends; then it closes all.
func (e *engines) run(ctx context.Context) error {
	var lives sync.WaitGroup
	defer lives.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.wake:
		}
		e.mu.Lock()
		starts := e.pending
		e.pending = nil
		e.mu.Unlock()
		for _, l := range starts {
			lives.Go(func() { e.live(ctx, l) })
		}
	}
}

// live runs one engine from launch to exit and reports the exit at once; a batch
// that is still under way ends by itself and reports nothing.
func (e *engines) live(ctx context.Context, l *engineLife) {
	ctx, cancel := context.WithCancelCause(ctx)
	var side sync.WaitGroup
	side.Go(func() {
		select {
		case <-l.kill:
			cancel(errKilled)
		case <-ctx.Done():
		}
	})
	exit := e.hold(ctx, l, &side)
	e.mu.Lock()
	delete(e.lives, l.id)
	e.mu.Unlock()
	e.post(node.EngineExited{Stage: l.id.stage, Run: l.id.run, Poisonous: exit.Poisonous, Reason: exit.Reason})
	cancel(nil)
	side.Wait()
}

// hold launches the engine, has its batches and its KV done in goroutines of side,
// and returns when it is gone.
func (e *engines) hold(ctx context.Context, l *engineLife, side *sync.WaitGroup) EngineExit {
	progress := e.progress(l.id)
	a, done, err := e.source(ctx, l.id.stage, progress)
	var eng Engine
	if err == nil {
		eng, err = e.launcher.Launch(ctx, LaunchSpec{
			Stage: l.id.stage, Run: l.id.run, Path: a.Path, Threads: e.threads, Cells: a.CellsWanted, Device: l.device,
			Progress: func(permille int) { progress(done+permille*(1000-done)/1000, false) },
		})
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return EngineExit{Reason: err.Error()}
	}
	info := eng.Info()
	if _, err := kvstream.LayoutOf(l.id.stage.Layers, info.CellBytes); err != nil {
		e.log.Warn("no copies of KV are kept of a stage", "stage", l.id.stage.Layers, "err", err)
		info.CellBytes = 0
	}
	if info.Width != a.Width || info.Cells < 1 {
		eng.Kill()
		return e.gone(eng, EngineExit{Reason: fmt.Sprintf("the engine has rows of %d bytes and %d KV positions, want rows of %d bytes and at least one position", info.Width, info.Cells, a.Width)})
	}
	l.mu.Lock()
	l.info = info
	l.mu.Unlock()
	e.log.Debug("engine loaded", "stage", l.id.stage.Layers, "run", l.id.run, "pid", info.PID, "device", info.Device)
	e.post(node.EngineReady{Stage: l.id.stage, Run: l.id.run, Class: info.Class, Cells: info.Cells, Width: info.Width, CellBytes: info.CellBytes})
	side.Go(func() { e.forward(ctx, l, eng, a) })
	side.Go(func() { e.transfer(ctx, l, eng, info.CellBytes) })
	select {
	case <-eng.Done():
	case <-ctx.Done():
		if !errors.Is(context.Cause(ctx), errKilled) {
			return e.close(eng)
		}
		eng.Kill()
		return e.gone(eng, EngineExit{Reason: errKilled.Error()})
	}
	exit := eng.Exit()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil { // it was killed because a batch failed
		exit = EngineExit{Poisonous: !errors.Is(l.fail, ErrNoMemory), Reason: l.fail.Error()}
	}
	return exit
}

// forward gives the engine its batches, one after the other.
func (e *engines) forward(ctx context.Context, l *engineLife, eng Engine, a AssignedStage) {
	for {
		var b stage.Batch
		select {
		case b = <-l.work:
		case <-eng.Done():
			return
		case <-ctx.Done():
			return
		}
		begin := time.Now()
		rows, sampled, err := eng.Forward(ctx, b)
		if err == nil {
			err = checkResult(b, a, rows, sampled)
		}
		if err == nil {
			e.observe(l.id.stage, time.Since(begin))
			e.post(node.BatchDone{Stage: l.id.stage, Run: l.id.run, Batch: b.ID, Rows: rows, Sampled: sampled})
			continue
		}
		settle := time.NewTimer(exitSettle)
		defer settle.Stop()
		select {
		case <-eng.Done(): // the exit itself tells whether the batch is to blame
		case <-ctx.Done():
		case <-settle.C:
			l.mu.Lock()
			l.fail = err
			l.mu.Unlock()
			eng.Kill()
		}
		return
	}
}

// checkResult makes sure that the machine gets what it relies on, whatever an
// engine answers.
func checkResult(b stage.Batch, a AssignedStage, rows [][]byte, sampled []kevlard.Sampled) error {
	var asked []kevlard.Sampling
	last := a.Layers.Hi == a.Model.Layers
	if !last && len(rows) != len(b.Parts) {
		return fmt.Errorf("batch %d: rows for %d parts, want %d", b.ID, len(rows), len(b.Parts))
	}
	for i, p := range b.Parts {
		if want := len(p.Tokens) * a.Width; !last && len(rows[i]) != want {
			return fmt.Errorf("batch %d: part %d: %d bytes of rows, want %d", b.ID, i, len(rows[i]), want)
		}
		if p.Sample && last {
			asked = append(asked, p.Sampling)
		}
	}
	if len(sampled) != len(asked) {
		return fmt.Errorf("batch %d: %d tokens, want %d", b.ID, len(sampled), len(asked))
	}
	for i, s := range sampled {
		if err := checkSampled(s, asked[i], a.Model.Vocab); err != nil {
			return fmt.Errorf("batch %d: token %d of %d: %w", b.ID, i+1, len(sampled), err)
		}
	}
	return nil
}

// checkSampled is checkResult for one token.
func checkSampled(s kevlard.Sampled, asked kevlard.Sampling, vocab int) error {
	if s.Token < 0 || int(s.Token) >= vocab {
		return fmt.Errorf("it is %d, the vocabulary has %d", s.Token, vocab)
	}
	if got := s.Logprobs != nil; got != asked.Logprobs {
		return fmt.Errorf("it has logprobs: %t, want %t", got, asked.Logprobs)
	}
	if s.Logprobs == nil {
		return nil
	}
	if err := s.Logprobs.Check(); err != nil {
		return err
	}
	// Fewer are right where the model excludes tokens.
	if n := len(s.Logprobs.Top); n > asked.TopLogprobs {
		return fmt.Errorf("it has %d top_logprobs, %d were asked for", n, asked.TopLogprobs)
	}
	for _, t := range s.Logprobs.Top {
		if int(t.Token) >= vocab {
			return fmt.Errorf("its top_logprobs have token %d, the vocabulary has %d", t.Token, vocab)
		}
	}
	return nil
}

// gone waits until a killed engine is really gone, or for killWait.
func (e *engines) gone(eng Engine, exit EngineExit) EngineExit {
	limit := time.NewTimer(killWait)
	defer limit.Stop()
	select {
	case <-eng.Done():
	case <-limit.C:
		exit.Reason += fmt.Sprintf("; pid %d is still there %v after SIGKILL", eng.Info().PID, killWait)
	}
	return exit
}

func (e *engines) close(eng Engine) EngineExit {
	if err := eng.Close(); err != nil {
		return EngineExit{Reason: fmt.Sprintf("stopped with the daemon: %v", err)}
	}
	return EngineExit{Reason: "stopped with the daemon"}
}

// progress reports load progress to the loop, not too often.
func (e *engines) progress(id engineID) func(permille int, waits bool) {
	var mu sync.Mutex
	var at time.Time
	var waiting bool
	return func(permille int, waits bool) {
		mu.Lock()
		now := time.Now()
		due := now.Sub(at) >= progressEvery || waits != waiting
		if due {
			at, waiting = now, waits
		}
		mu.Unlock()
		if due {
			e.post(node.EngineLoading{Stage: id.stage, Run: id.run, Progress: min(max(permille, 0), 1000), Waits: waits})
		}
	}
}
