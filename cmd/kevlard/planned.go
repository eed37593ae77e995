package main

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"github.com/kevlard/kevlard/daemon"
	"github.com/kevlard/kevlard/model"
	"github.com/kevlard/kevlard/topology"
)

// A host without configured stages ([models] assign = "auto") takes those that the mesh's
// plan gives it, of the models that its disk has.

// planned reports whether this node takes the stages of the plan.
func planned(cfg config.Config) bool {
	return builtWithEngine && cfg.Node.Role == config.RoleHost && len(cfg.Models.Assign) == 0
}

// usualStages is the number of stages that a pipeline has unless memory asks for more.
const usualStages = 4

// deviceNames are those that stages can be on; one without name is the engine's choice.
func deviceNames(cfg config.Config) []string {
	if len(cfg.Engine.Devices) > 0 {
		return cfg.Engine.Devices
	}
	return []string{""}
}

// capacity is what the node says of its devices.
func capacity(cfg config.Config) topology.Capacity {
	c := topology.Capacity{Auto: true}
	for range deviceNames(cfg) {
		c.Devices = append(c.Devices, topology.Device{Budget: budget(cfg)})
	}
	return c
}

// budget is the memory of one device for weights and KV: as configured, or half of what
// the host, or the control group, has, shared by the devices. The other half is for the
// copies of KV, the daemon and the file cache.
func budget(cfg config.Config) int64 {
	if n := cfg.Engine.MemoryBytes; n > 0 {
		return int64(n)
	}
	return hostMemory() / 2 / int64(len(deviceNames(cfg)))
}

// cellsOf is how many KV positions each planned stage of a model has: the same for all
// stages of all nodes with one configuration, so that a stage that moves has room for
// what it had. They take at most half of the budget of a node that holds a quarter.
func cellsOf(cfg config.Config, m *model.Manifest) int {
	if cfg.Engine.Cells > 0 {
		return cfg.Engine.Cells
	}
	row := m.KVRowBytes(rowValueBytes) * max(1, (m.Layers+usualStages-1)/usualStages)
	cells := max(m.Context, min(defaultKVBytes/row, maxCells))
	return max(1, min(cells, int(budget(cfg)/2)/row))
}

// localModel describes a file for the daemon and the plan.
func localModel(cfg config.Config, m *model.Manifest) daemon.LocalModel {
	cells := cellsOf(cfg, m)
	w := topology.Weights{Model: m.ID, KV: int64(cells * m.KVRowBytes(rowValueBytes))}
	for _, u := range m.Units {
		switch u.Name {
		case "globals":
			w.Globals = u.Bytes
		case "embedding":
			w.Embedding = u.Bytes
		case "head":
			w.Head = u.Bytes
		default:
			if n := len(w.Layers); n > 0 && w.Layers[n-1].Bytes == u.Bytes {
				w.Layers[n-1].Count++
			} else {
				w.Layers = append(w.Layers, topology.Run{Count: 1, Bytes: u.Bytes})
			}
		}
	}
	return daemon.LocalModel{
		Model: topology.Model{ID: m.ID, Name: m.Name, Layers: m.Layers, Context: m.Context, Vocab: m.Vocab},
		Path:  m.Path, Width: m.Dim * rowValueBytes, Weights: w, Cells: func(kevlard.Layers) int { return cells },
	}
}

// followModels reads the model directories, which takes minutes the first time that
// there are large files, and tells the daemon; then again now and then. A host that has
// configured stages, or a gateway, knows its files already.
func (a *agent) followModels(ctx context.Context) error {
	if !planned(a.cfg) {
		return a.models.run(ctx, a.gen.wanted)
	}
	for {
		a.models.scan(ctx)
		var offered []daemon.LocalModel
		for _, m := range a.models.all() {
			offered = append(offered, localModel(a.cfg, m))
		}
		if err := a.daemon.Offer(offered); err != nil && ctx.Err() == nil {
			a.log.Warn("the models here are not offered to the mesh", "error", err)
		}
		again := time.NewTimer(rescanInterval)
		select {
		case <-ctx.Done():
			again.Stop()
			return context.Cause(ctx)
		case <-again.C:
		}
	}
}

// all lists the models that are known, by name and id.
func (c *catalogue) all() []*model.Manifest {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*model.Manifest
	for _, m := range c.models {
		out = append(out, m.manifest)
	}
	slices.SortFunc(out, func(a, b *model.Manifest) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), slices.Compare(a.ID[:], b.ID[:]))
	})
	return out
}

// manifest returns that of a model, nil if it is not known.
func (c *catalogue) manifest(id kevlard.Digest) *model.Manifest {
	m, _ := c.get(id)
	return m.manifest
}
