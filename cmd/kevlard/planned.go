package main

import (
	"context"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"github.com/kevlard/kevlard/daemon"
	"github.com/kevlard/kevlard/model"
	"github.com/kevlard/kevlard/topology"
)

// A host without configured stages ([models] assign = "auto") takes those that the mesh's
// plan gives it. What its disk lacks of them is fetched from other nodes.

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

// capacity is what the node says of its devices, whose budgets are given, and of what it
// may hold.
func capacity(cfg config.Config, budgets []int64) topology.Capacity {
	c := topology.Capacity{Auto: true}
	for _, b := range budgets {
		c.Devices = append(c.Devices, topology.Device{Budget: b})
	}
	for _, s := range cfg.Models.Serve {
		c.Serve = append(c.Serve, topology.Serve{Name: s.Name, Weight: s.Share})
	}
	return c
}

// cellsOf is how many KV positions each planned stage of a model has: the same for all
// stages of all nodes with one configuration and alike devices, so that a stage that moves
// has room for what it had. They take at most half of the budget of a device that holds a
// quarter of the layers.
func cellsOf(cfg config.Config, budgets []int64, m *model.Manifest) int {
	if cfg.Engine.Cells > 0 {
		return cfg.Engine.Cells
	}
	row := m.KVRowBytes(rowValueBytes) * max(1, (m.Layers+usualStages-1)/usualStages)
	cells := max(m.Context, min(defaultKVBytes/row, maxCells))
	if b := least(budgets); b > 0 { // else nothing is known yet, and no stage is taken
		cells = min(cells, int(b/2)/row)
	}
	return max(1, cells)
}

// localModel describes a file for the daemon and the plan.
func localModel(cfg config.Config, budgets []int64, m *model.Manifest) daemon.LocalModel {
	cells := cellsOf(cfg, budgets, m)
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
		Path:  m.Path, Layers: onDisk(m), Width: m.Dim * rowValueBytes, Weights: w, Cells: func(kevlard.Layers) int { return cells },
	}
}

// onDisk lists the ranges of layers that a manifest has, as topology.Local has them.
func onDisk(m *model.Manifest) []kevlard.Layers {
	var out []kevlard.Layers
	for k := range m.Layers {
		one := kevlard.Layers{Lo: k, Hi: k + 1}
		switch n := len(out); {
		case !m.Holds(one):
		case n > 0 && out[n-1].Hi == k:
			out[n-1].Hi++
		default:
			out = append(out, one)
		}
	}
	return out
}

// fetched is daemon.Deps.Fetched.
func (a *agent) fetched(ctx context.Context, path string) (daemon.LocalModel, error) {
	m, err := a.models.loader.Load(ctx, path)
	if err == nil {
		err = a.models.know(m)
	}
	if err != nil {
		return daemon.LocalModel{}, err
	}
	a.models.stir()
	return localModel(a.cfg, a.budgets(), m), nil
}

// followModels keeps what the node knows of models up to date. A host that takes the
// stages of the plan reads its model directories, which takes minutes the first time that
// there are large files, and tells the daemon; then again now and then. A host that has
// configured stages, or a gateway, knows its files already, and looks again only for a
// model that is new in the ring. Of what is still not known then the header is fetched:
// without a tokenizer there is no API for it.
func (a *agent) followModels(ctx context.Context) error {
	ticker := time.NewTicker(ringInterval)
	defer ticker.Stop()
	auto := planned(a.cfg)
	offer := auto
	if auto {
		a.models.scan(ctx)
	}
	scanned, asked := time.Now(), map[kevlard.Digest]time.Time{} // by the models of the ring
	for {
		unknown := a.models.unknown(a.gen.wanted())
		if time.Since(scanned) >= rescanInterval && (auto || len(unknown) > 0) {
			a.models.scan(ctx)
			unknown = a.models.unknown(unknown)
			scanned, offer = time.Now(), auto
		}
		for _, id := range unknown {
			if at, again := asked[id]; !again || time.Since(at) >= rescanInterval {
				asked[id] = time.Now()
				offer = a.learn(ctx, id) && auto || offer
			}
		}
		if offer {
			a.offer(ctx)
		}
		offer = false
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-a.models.changed:
			offer = auto
		case <-ticker.C:
		}
	}
}

// learn fetches the header of a model that the ring has, and reports whether it is known.
func (a *agent) learn(ctx context.Context, id kevlard.Digest) bool {
	path, err := a.daemon.FetchWeights(ctx, id, kevlard.Layers{}, nil)
	if err == nil {
		var m *model.Manifest
		if m, err = a.models.loader.Load(ctx, path); err == nil {
			err = a.models.know(m)
		}
	}
	if err != nil && ctx.Err() == nil {
		a.log.Warn("a model of the ring is not served by this node's API: it has no tokenizer of it; it tries again", "model", id.Short(), "error", err)
	}
	return err == nil
}

// offer tells the daemon which models are known, what of them is on the disk, and what
// there is room for.
func (a *agent) offer(ctx context.Context) {
	budgets := a.budgets()
	var offered []daemon.LocalModel
	for _, m := range a.models.all() {
		offered = append(offered, localModel(a.cfg, budgets, m))
	}
	if err := a.daemon.Offer(offered, capacity(a.cfg, budgets).Devices); err != nil && ctx.Err() == nil {
		a.log.Warn("models here are not offered to the mesh", "error", err)
	}
}
