// Package toy is a launcher of engines that run toymodel inside the process: for
// tests of the daemon and of what stands on it. Its engines can be killed, frozen
// and made to crash on a token, like real ones.
package toy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon"
	"github.com/kevlard/kevlard/internal/toymodel"
	"github.com/kevlard/kevlard/stage"
)

// ErrGone is returned by Forward when the engine has exited.
var ErrGone = errors.New("the toy engine is gone")

// Launcher starts toy engines. The fields may not change once it is used.
type Launcher struct {
	Model toymodel.Model
	// Class is the numerics class that the engines report. Default "toy".
	Class string
	// Step is how long each batch takes at least. Default 0.
	Step time.Duration
	// Poison makes an engine crash like an abort when a batch of a first stage
	// holds this token; 0 never does.
	Poison kevlard.Token

	mu      sync.Mutex
	engines map[kevlard.StageKey]*Engine // the latest of each stage
	refuse  error
	starts  int
}

// Launch implements daemon.Launcher.
func (l *Launcher) Launch(ctx context.Context, spec daemon.LaunchSpec) (daemon.Engine, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starts++
	if l.refuse != nil {
		return nil, l.refuse
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	st, err := toymodel.NewStage(l.Model, spec.Stage.Layers, spec.Cells)
	if err != nil {
		return nil, err
	}
	spec.Progress(1000)
	class := l.Class
	if class == "" {
		class = "toy"
	}
	e := &Engine{
		info:   daemon.EngineInfo{Class: class, Cells: spec.Cells, Width: l.Model.Width, CellBytes: st.CellBytes(), PID: l.starts, Device: "toy"},
		stage:  st,
		step:   l.Step,
		poison: l.Poison,
		first:  spec.Stage.Layers.Lo == 0,
		done:   make(chan struct{}),
		thaw:   make(chan struct{}),
	}
	close(e.thaw)
	if l.engines == nil {
		l.engines = map[kevlard.StageKey]*Engine{}
	}
	l.engines[spec.Stage] = e
	return e, nil
}

// Refuse makes further launches fail with err; nil lets them succeed again.
func (l *Launcher) Refuse(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = err
}

// Engine returns the latest engine of a stage, nil before the first.
func (l *Launcher) Engine(k kevlard.StageKey) *Engine {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.engines[k]
}

// Starts is how many launches there were.
func (l *Launcher) Starts() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.starts
}

// Engine is one toy engine.
type Engine struct {
	info   daemon.EngineInfo
	poison kevlard.Token
	first  bool
	done   chan struct{}

	computing sync.Mutex
	stage     *toymodel.Stage // guarded by computing

	mu   sync.Mutex
	step time.Duration
	exit *daemon.EngineExit
	thaw chan struct{} // closed unless frozen
}

// Info implements daemon.Engine.
func (e *Engine) Info() daemon.EngineInfo { return e.info }

// Forward implements daemon.Engine. A frozen engine answers when it is thawed.
func (e *Engine) Forward(ctx context.Context, b stage.Batch) ([][]byte, []kevlard.Sampled, error) {
	if err := e.pause(ctx); err != nil {
		return nil, nil, err
	}
	for _, p := range b.Parts {
		for _, t := range p.Tokens {
			if e.first && e.poison != 0 && t == e.poison {
				e.end(daemon.EngineExit{Poisonous: true, Reason: fmt.Sprintf("signal: aborted (token %d is poison)", t)})
				return nil, nil, ErrGone
			}
		}
	}
	e.computing.Lock()
	rows, sampled, err := e.stage.Forward(b)
	e.computing.Unlock()
	if err != nil {
		return nil, nil, err
	}
	if err := e.pause(ctx); err != nil { // frozen or killed while it computed
		return nil, nil, err
	}
	return rows, sampled, nil
}

// ReadCells implements daemon.Engine. A toy's cell has one word for each layer; its
// halves stand for keys and values.
func (e *Engine) ReadCells(ctx context.Context, cell, n int, dst []byte) error {
	words := make([]byte, len(dst))
	if err := e.cells(ctx, func() error { return e.stage.Read(cell, n, words) }); err != nil {
		return err
	}
	eachHalf(n, len(words), func(word, half int) { copy(dst[half:half+4], words[word:]) })
	return nil
}

// WriteCells implements daemon.Engine.
func (e *Engine) WriteCells(ctx context.Context, cell, n int, src []byte) error {
	words := make([]byte, len(src))
	eachHalf(n, len(words), func(word, half int) { copy(words[word:word+4], src[half:]) })
	return e.cells(ctx, func() error { return e.stage.Write(cell, n, words) })
}

// cells calls f once the engine is not frozen.
func (e *Engine) cells(ctx context.Context, f func() error) error {
	if err := e.frozen(ctx); err != nil {
		return err
	}
	e.computing.Lock()
	defer e.computing.Unlock()
	return f()
}

// eachHalf pairs the halves of the words of n cells, for each layer n words, with
// where they go when all lower halves of a layer come before the upper ones.
func eachHalf(n, size int, f func(word, half int)) {
	for at := 0; at < size; at += 8 {
		layer, i := at/8/n, at/8%n
		f(at, 4*(2*layer*n+i))
		f(at+4, 4*((2*layer+1)*n+i))
	}
}

// pause takes half the time of a batch, and as long as the engine is frozen.
func (e *Engine) pause(ctx context.Context) error {
	e.mu.Lock()
	step := e.step
	e.mu.Unlock()
	if step > 0 {
		timer := time.NewTimer(step / 2)
		defer timer.Stop()
		select {
		case <-e.done:
			return ErrGone
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
	return e.frozen(ctx)
}

// frozen waits until the engine is not frozen.
func (e *Engine) frozen(ctx context.Context) error {
	e.mu.Lock()
	thaw := e.thaw
	e.mu.Unlock()
	select {
	case <-e.done: // also when it is thawed: gone is gone
		return ErrGone
	default:
	}
	select {
	case <-e.done:
		return ErrGone
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-thaw:
		return nil
	}
}

// Throttle changes how long each batch takes at least.
func (e *Engine) Throttle(step time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.step = step
}

// Freeze stops the engine like SIGSTOP; Thaw lets it go on.
func (e *Engine) Freeze() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.thaw = make(chan struct{})
}

// Thaw ends Freeze.
func (e *Engine) Thaw() {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-e.thaw:
	default:
		close(e.thaw)
	}
}

func (e *Engine) end(x daemon.EngineExit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.exit == nil {
		e.exit = &x
		close(e.done)
	}
}

// Done implements daemon.Engine.
func (e *Engine) Done() <-chan struct{} { return e.done }

// Exit implements daemon.Engine.
func (e *Engine) Exit() daemon.EngineExit {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.exit == nil {
		return daemon.EngineExit{}
	}
	return *e.exit
}

// Kill implements daemon.Engine.
func (e *Engine) Kill() { e.end(daemon.EngineExit{Reason: "signal: killed"}) }

// Close implements daemon.Engine.
func (e *Engine) Close() error {
	e.end(daemon.EngineExit{Reason: "closed"})
	return nil
}
