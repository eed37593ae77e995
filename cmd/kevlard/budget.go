package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"github.com/kevlard/kevlard/engine"
	"github.com/kevlard/kevlard/gpu/health"
)

// memory is the bytes of a GPU, or of an instance of one.
type memory struct{ free, total int64 }

const (
	// gpuReserve is the least that is left of a GPU's memory for what engines need beside
	// weights and KV: a context each, which takes some hundred MiB, and buffers.
	gpuReserve = 1 << 30
	// budgetStep is to what a GPU's budget is rounded down, so that it is not another one,
	// which others are told, whenever some page becomes free.
	budgetStep = 64 << 20
)

// budget is what of a GPU's memory the plan may use: what is free, less a tenth of all, at
// least gpuReserve.
func (m memory) budget() int64 {
	return max(0, m.free-max(gpuReserve, m.total/10)) / budgetStep * budgetStep
}

// budgets is the memory of each device for weights and KV, in the order of deviceNames: as
// configured; of the CPU half of what the host, or the control group, has, shared by the
// entries that are the CPU (the other half is for the copies of KV, the daemon and the file
// cache); of a GPU what was found of it, 0 where nothing is known. gpus has an entry for
// each device, or none.
func budgets(cfg config.Config, gpus []int64) []int64 {
	names := deviceNames(cfg)
	out := make([]int64, len(names))
	for i, name := range names {
		switch {
		case cfg.Engine.MemoryBytes > 0:
			out[i] = int64(cfg.Engine.MemoryBytes)
		case engine.Family(name) == engine.CPU:
			out[i] = hostMemory() / 2 / cpus(cfg)
		case len(gpus) > 0:
			out[i] = gpus[i]
		}
	}
	return out
}

// cpus is how many of the devices are the CPU.
func cpus(cfg config.Config) int64 {
	n := int64(0)
	for _, name := range deviceNames(cfg) {
		if engine.Family(name) == engine.CPU {
			n++
		}
	}
	return n
}

// least is the smallest budget that is one, 0 if there is none.
func least(budgets []int64) int64 {
	var out int64
	for _, b := range budgets {
		if b > 0 && (out == 0 || b < out) {
			out = b
		}
	}
	return out
}

func (a *agent) budgets() []int64 { return budgets(a.cfg, a.gpus.budgets()) }

// hear takes a reading, and reports whether a device has another budget by it.
func (g *gpus) hear(r health.Reading) bool {
	before := g.budgets()
	g.mu.Lock()
	g.last = r
	targets, _ := g.targets(r.Devices) // an error is a reason of missing
	for _, t := range targets {
		// The most that was ever free: what engines of this node take is spoken for by the
		// stages that the plan counts. What others take later shows when a load fails.
		if t != nil && t.Device.Lost == "" {
			free, total := t.Memory()
			g.most[t.Visible] = memory{max(g.most[t.Visible].free, free), total}
		}
	}
	g.mu.Unlock()
	return !slices.Equal(before, g.budgets())
}

// budgets is what the plan may use of each configured device's memory; 0 where it is not
// known, and for the CPU. Entries that are the same GPU share it.
func (g *gpus) budgets() []int64 {
	out := make([]int64, len(g.devices))
	g.mu.Lock()
	defer g.mu.Unlock()
	targets, _ := g.targets(g.last.Devices)
	for i, t := range targets {
		if t == nil {
			continue
		}
		same := int64(0)
		for _, o := range targets {
			if o != nil && o.Visible == t.Visible {
				same++
			}
		}
		out[i] = g.most[t.Visible].budget() / same
	}
	return out
}

func (g *gpus) reading() health.Reading {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

// place is where the engines of a configured device compute: its family, that family's
// library ("" for the CPU), and what makes an engine see this device alone. The error says
// what is missing: a stage is never computed on another device than the one that was asked
// for.
func (g *gpus) place(device string) (family, library string, env []string, err error) {
	family = engine.Family(device)
	if family != engine.CPU && g.backends == "" {
		return "", "", nil, wrongDevice(device, engine.CPU)
	}
	if library, err = engine.Library(g.backends, family); err != nil {
		return "", "", nil, fmt.Errorf("[engine] devices asks for %s: %w", device, err)
	}
	env, err = g.environment(device)
	return family, library, env, err
}

// missing names the configured devices that are not there, and why; "" if nothing is known
// to be missing. Where stages are planned, a device's memory has to be known too.
func (g *gpus) missing(needsMemory bool) string {
	budgets, driver := g.budgets(), g.reading().NoDriver
	var out []string
	for i, name := range g.devices {
		_, _, _, err := g.place(name)
		switch {
		case err != nil:
		case !needsMemory || engine.Family(name) == engine.CPU || budgets[i] > 0:
			continue
		case driver != "":
			err = fmt.Errorf("[engine] devices asks for %s, and nothing says how much memory it has: %s: mend that, or set [engine] memory_bytes", name, driver)
		default:
			err = fmt.Errorf("[engine] devices asks for %s, and the driver tells of no memory there that is free (%d MiB stay with the driver and engines): make room on it, or set [engine] memory_bytes", name, gpuReserve>>20)
		}
		if !slices.Contains(out, err.Error()) {
			out = append(out, err.Error())
		}
	}
	return strings.Join(out, "; ")
}
