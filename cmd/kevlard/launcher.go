package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon"
	"github.com/kevlard/kevlard/engine"
	"github.com/kevlard/kevlard/model"
	"github.com/kevlard/kevlard/stage"
)

// launcher starts engine processes for the daemon. It is a daemon.Launcher.
type launcher struct {
	exe  string                                               // this program
	find func(kevlard.Digest, kevlard.Layers) *model.Manifest // nil: nothing here has these layers
	rows int                                                  // most rows of a batch
	log  *slog.Logger

	gpus     *gpus
	numerics *numerics
}

// numerics remembers what the engines of each device measured last.
type numerics struct {
	mu sync.Mutex
	of map[int]engine.Numerics // by index of the device
}

func newNumerics() *numerics { return &numerics{of: map[int]engine.Numerics{}} }

func (n *numerics) get(device int) engine.Numerics {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.of[device]
}

func (n *numerics) put(device int, m engine.Numerics) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.of[device] = m
}

// Launch implements daemon.Launcher.
func (l launcher) Launch(ctx context.Context, spec daemon.LaunchSpec) (daemon.Engine, error) {
	m := l.find(spec.Stage.Model, spec.Stage.Layers)
	if m == nil {
		return nil, fmt.Errorf("the weights of layers %v are not at %s any more: put the file back", spec.Stage.Layers, spec.Path)
	}
	want := l.gpus.devices[spec.Device]
	family, library, env, err := l.gpus.place(want)
	if err != nil {
		return nil, err
	}
	opt := engine.ProcessOptions{Log: l.log.With("stage", spec.Stage.Layers.String(), "run", spec.Run), Env: env}
	if spec.Progress != nil {
		opt.Progress = func(done, total int64) { spec.Progress(int(done * 1000 / max(total, 1))) }
	}
	s := engine.NewSpec(m, spec.Stage.Layers, spec.Threads, spec.Cells, l.rows)
	s.Device, s.Library = family, library
	s.Numerics = l.numerics.get(spec.Device)
	p, err := engine.Start(ctx, l.exe, []string{"engine"}, s, opt)
	if err != nil {
		return nil, err
	}
	if got := p.Info().Device; got != family {
		p.Kill()
		<-p.Done()
		return nil, wrongDevice(want, got)
	}
	l.numerics.put(spec.Device, p.Info().Numerics)
	return process{Process: p, width: m.Dim * rowValueBytes, device: cmp.Or(want, family)}, nil
}

// wrongDevice says why a stage waits: it is never computed on another device than
// the one that was asked for.
func wrongDevice(want, have string) error {
	return fmt.Errorf("[engine] devices asks for %s, and there is only %s: install its driver and a build that has it, or change [engine] devices", want, have)
}

// rowValueBytes is the size of a value in a row of hidden state: float32.
const rowValueBytes = 4

// process is a daemon.Engine in a child process.
type process struct {
	*engine.Process
	width  int
	device string
}

// Info implements daemon.Engine.
func (p process) Info() daemon.EngineInfo {
	i := p.Process.Info()
	if !i.Invariant { // what depends on batch company can't be generated again
		i.Class = kevlard.BestEffort + i.Class
	}
	return daemon.EngineInfo{
		Class: i.Class, Cells: i.Cells, Width: p.width, CellBytes: i.CellBytes, WeightBytes: i.WeightBytes, PID: p.PID(), Device: p.device,
	}
}

// ReadCells implements daemon.Engine.
func (p process) ReadCells(ctx context.Context, cell, n int, dst []byte) error {
	return p.Process.Read(ctx, cell, n, dst)
}

// WriteCells implements daemon.Engine.
func (p process) WriteCells(ctx context.Context, cell, n int, src []byte) error {
	return p.Process.Write(ctx, cell, n, src)
}

// Exit implements daemon.Engine.
func (p process) Exit() daemon.EngineExit {
	e := p.Process.Exit()
	return daemon.EngineExit{Poisonous: e.Poisonous, Reason: e.String()}
}

// Forward implements daemon.Engine.
func (p process) Forward(ctx context.Context, b stage.Batch) ([][]byte, []kevlard.Sampled, error) {
	batch, rows := p.encode(b)
	result, err := p.Process.Forward(ctx, batch)
	if errors.Is(err, engine.ErrNoMemory) {
		err = fmt.Errorf("%w: %w", daemon.ErrNoMemory, err)
	}
	if err != nil || result.Rows == nil {
		return nil, result.Sampled, err
	}
	if len(result.Rows) != rows*p.width {
		panic(fmt.Sprintf("kevlard: the engine gave %d bytes for %d rows of %d", len(result.Rows), rows, p.width))
	}
	out := make([][]byte, len(batch.Parts))
	at := 0
	for i, part := range batch.Parts {
		n := part.N * p.width
		out[i] = result.Rows[at : at+n : at+n]
		at += n
	}
	return out, result.Sampled, nil
}

// encode turns the daemon's batch into the engine's, and counts its rows. Only a
// first stage is told the tokens: to the others they would be noise.
func (p process) encode(b stage.Batch) (engine.Batch, int) {
	batch := engine.Batch{Parts: make([]engine.Part, len(b.Parts))}
	first := p.Process.Info().First()
	rows, size := 0, 0
	for _, part := range b.Parts {
		size += len(part.Rows)
	}
	if !first {
		batch.Rows = make([]byte, 0, size)
	}
	for i, part := range b.Parts {
		e := engine.Part{Cell: part.Cell, Pos: part.Pos, Sample: part.Sample, Sampling: part.Sampling, History: part.History}
		if first {
			e.N, e.Tokens = len(part.Tokens), part.Tokens
		} else {
			e.N = len(part.Rows) / p.width
			batch.Rows = append(batch.Rows, part.Rows...)
		}
		rows += e.N
		batch.Parts[i] = e
	}
	return batch, rows
}
