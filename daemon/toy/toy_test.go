package toy

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon"
	"github.com/kevlard/kevlard/internal/toymodel"
	"github.com/kevlard/kevlard/kvstream"
	"github.com/kevlard/kevlard/stage"
)

func launch(t *testing.T) *Engine {
	l := &Launcher{Model: toymodel.Model{Layers: 4, Vocab: 50, Width: 16}}
	k := kevlard.StageKey{Layers: kevlard.Layers{Lo: 0, Hi: 3}}
	if _, err := l.Launch(t.Context(), daemon.LaunchSpec{Stage: k, Cells: 32, Progress: func(int) {}}); err != nil {
		t.Fatal(err)
	}
	return l.Engine(k)
}

func forward(t *testing.T, e *Engine, cell, pos int, tokens ...kevlard.Token) []byte {
	t.Helper()
	rows, _, err := e.Forward(t.Context(), stage.Batch{Parts: []stage.Part{{Cell: cell, Pos: pos, Tokens: tokens}}})
	if err != nil {
		t.Fatal(err)
	}
	return rows[0]
}

// TestCellsAreLaidOut reads cells together and one by one, and wants the same rows
// in the layout that all engines have.
func TestCellsAreLaidOut(t *testing.T) {
	a, b := launch(t), launch(t)
	forward(t, a, 3, 0, 7, 8, 9, 10)
	layout, err := kvstream.LayoutOf(kevlard.Layers{Lo: 0, Hi: 3}, a.Info().CellBytes)
	if err != nil {
		t.Fatal(err)
	}
	read := func(cell, n int) []byte {
		kv := make([]byte, n*layout.CellBytes())
		if err := a.ReadCells(t.Context(), cell, n, kv); err != nil {
			t.Fatal(err)
		}
		return kv
	}
	all := read(3, 4)
	for i := range 4 {
		one := read(3+i, 1)
		for r := range layout.Runs {
			if at := (r*4 + i) * layout.Row; !bytes.Equal(all[at:at+layout.Row], one[r*layout.Row:(r+1)*layout.Row]) {
				t.Errorf("position %d: row %d is elsewhere", i, r)
			}
		}
	}
	if err := b.WriteCells(t.Context(), 20, 4, all); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(forward(t, a, 3, 4, 11), forward(t, b, 20, 4, 11)) {
		t.Error("an engine does not go on from written cells")
	}
}

// TestFrozenEngineKeepsItsCells wants a read to wait, and to end with the engine.
func TestFrozenEngineKeepsItsCells(t *testing.T) {
	e := launch(t)
	kv := make([]byte, e.Info().CellBytes)
	e.Freeze()
	read := make(chan error, 1)
	go func() { read <- e.ReadCells(t.Context(), 0, 1, kv) }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := e.WriteCells(ctx, 0, 1, kv); err == nil {
		t.Error("a frozen engine wrote")
	}
	e.Thaw()
	if err := <-read; err != nil {
		t.Error(err)
	}
	e.Kill()
	if err := e.ReadCells(t.Context(), 0, 1, kv); err == nil {
		t.Error("a killed engine read")
	}
}
