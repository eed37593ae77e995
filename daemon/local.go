package daemon

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/topology"
)

// LocalModel is a model that this node knows: any stage of it can be adopted.
type LocalModel struct {
	Model topology.Model
	// Path is the model file, for the launcher.
	Path string
	// Layers are the ranges whose weights are on this node's disk: the first with the
	// embedding, the last with the head. What stages of others need is fetched.
	Layers []kevlard.Layers
	// Width is the bytes of one row of hidden state.
	Width int
	// Cells returns the KV positions to ask of the engine of a stage. Default: four
	// sessions of the model's whole context.
	Cells func(kevlard.Layers) int
	// Weights are the sizes that the plan counts with.
	Weights topology.Weights
}

// stage describes one stage of the model as the configuration would.
func (l LocalModel) stage(layers kevlard.Layers) AssignedStage {
	a := AssignedStage{Model: l.Model, Path: l.Path, Layers: layers, Width: l.Width, CellsWanted: 4 * l.Model.Context}
	if l.Cells != nil {
		a.CellsWanted = l.Cells(layers)
	}
	return a
}

func (l LocalModel) check() error {
	m := l.Model
	if m.ID.IsZero() || m.Layers < 1 || m.Context < 1 || m.Vocab < 1 || l.Width < 1 {
		return fmt.Errorf("local model %q: digest %s, %d layers, context %d, vocabulary %d, rows of %d bytes; want all of them", m.Name, m.ID.Short(), m.Layers, m.Context, m.Vocab, l.Width)
	}
	if len(m.Name) > maxText {
		return fmt.Errorf("local model %s has a name of %d bytes: want at most %d", m.ID.Short(), len(m.Name), maxText)
	}
	return nil
}

// has reports whether the weights of a stage are on this node's disk.
func (l LocalModel) has(layers kevlard.Layers) bool {
	return slices.ContainsFunc(l.Layers, func(have kevlard.Layers) bool { return have.Contains(layers) })
}

// Offer replaces the models that this node knows. Others are told of them, as far as a
// record takes them (those that this node may serve first), and their stages can be
// adopted. devices, unless nil, is what others are told of this node's devices from now on.
// The error says which models are left out, and why; the rest is offered.
func (d *Daemon) Offer(models []LocalModel, devices []topology.Device) error {
	var errs []error
	var fit []LocalModel
	for _, m := range models {
		if err := m.check(); err != nil {
			errs = append(errs, err)
			continue
		}
		m.Model.Width = m.Width
		fit = append(fit, m)
	}
	serves := func(m LocalModel) bool {
		return slices.ContainsFunc(d.cfg.Capacity.Serve, func(s topology.Serve) bool { return s.Name == m.Model.Name })
	}
	slices.SortStableFunc(fit, func(a, b LocalModel) int {
		switch {
		case serves(a) == serves(b):
			return 0
		case serves(a):
			return -1
		}
		return 1
	})
	d.engines.offer(fit)
	version, changed, taken, err := d.records.offer(fit, devices)
	if changed {
		d.ring.SetRecord(version)
	}
	if left := fit[taken:]; len(left) > 0 {
		errs = append(errs, fmt.Errorf("%d of %d models, %q and on, do not fit in what this node tells others: keep fewer in [models] dirs, or name the important ones in [models] serve", len(left), len(fit), left[0].Model.Name))
	}
	return errors.Join(append(errs, err)...)
}

// Adopt makes this node hold a stage of a model that it was offered, or that is assigned
// to it. cause is for the event log.
func (d *Daemon) Adopt(key kevlard.StageKey, cause string) error {
	a, _, err := d.engines.find(key)
	if err != nil {
		return fmt.Errorf("adopt stage %v: %w", key.Layers, err)
	}
	if !d.post(node.Adopt{Assigned: node.Assigned{Model: a.Model, Layers: key.Layers, Width: a.Width}, Cause: cause}) {
		return errStopped
	}
	return nil
}

// Release makes this node give a stage up, if it holds it.
func (d *Daemon) Release(key kevlard.StageKey) error {
	if !d.post(node.Release{Stage: key}) {
		return errStopped
	}
	return nil
}
