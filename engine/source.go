package engine

import (
	"fmt"
	"io"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/model"
)

// NewSpec is the stage of layers l of the model that m describes. threads, cells
// and rows become Threads, Cells and MaxRows.
func NewSpec(m *model.Manifest, l kevlard.Layers, threads, cells, rows int) Spec {
	return Spec{Path: m.Path, Stamp: m.Stamp, Shape: m.Shape, Layers: l, Threads: threads, Cells: cells, MaxRows: rows}
}

// openWeights opens the file of spec, which must be in the state that its manifest
// described: then the header needs no second interpretation here. The closer is
// the file, which must stay open while tensors are read.
func openWeights(spec Spec) (*weights, io.Closer, error) {
	f, err := (&model.Manifest{Path: spec.Path, Stamp: spec.Stamp}).Open()
	if err != nil {
		return nil, nil, err
	}
	w := &weights{Shape: spec.Shape, tensors: make(map[string]tensor, len(f.Tensors()))}
	for _, t := range f.Tensors() {
		w.tensors[t.Name] = tensor{name: t.Name, kind: t.Type, shape: t.Shape, size: t.Size, data: f.Data(t)}
	}
	if err := w.checkShapes(); err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("model %s: %w", spec.Path, err)
	}
	return w, f, nil
}
