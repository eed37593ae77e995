package sim

import (
	"math/rand/v2"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/internal/toymodel"
	"github.com/kevlard/kevlard/node"
)

// Liars draws a scenario with one host that computes with other weights than it says, in all
// its lives, beside two honest holders of the same layers.
func Liars(seed uint64) Scenario {
	s := FromSeed(seed)
	rng := rand.New(rand.NewPCG(seed, 0x11a2))
	s.Gentle, s.SafeOwners, s.Poison, s.Limits, s.Wire = false, false, 0, node.Limits{}, seed%4 == 0
	s.Copies, s.Whole, s.Cells, s.Sessions, s.MaxTokens, s.Faults = 3, 0, 1<<14, 24, 150, 4+rng.IntN(10)
	s.Horizon, s.Roam, s.Shared, s.Standbys = 5*time.Second, rng.IntN(4) > 0, rng.IntN(4) > 0, 1
	s.Kinds = []Kind{Kill, Reset, Freeze, Isolate, EngineKill}
	s.Audit, s.Liar = true, 1+rng.IntN(s.Copies*len(s.Ranges))
	return s
}

// lies reports whether a host computes with other weights.
func (h *host) lies() bool { return h.w.sc.Liar == h.index+1 }

// knows reports whether a host does not believe who lies.
func (h *host) knows() bool {
	if h.m == nil {
		return false
	}
	for _, t := range h.m.Snapshot(h.w.now).Distrusted {
		if h.w.byID[t.Node].lies() {
			return true
		}
	}
	return false
}

// weights is the model that a host computes with.
func (h *host) weights() toymodel.Model {
	m := h.w.toy()
	if h.lies() {
		m.Weights = 0xbad
	}
	return m
}

// wrong judges tokens that are not those of the fault-free run. With a liar in the mesh they
// may be: until the owner knows of it.
func (j *judge) wrong(h *host, c *client, format string, args ...any) {
	switch {
	case j.w.sc.Liar == 0:
		j.fail(format, args...)
	case h == c.owner && h.knows():
		j.fail(format+", and its owner knows who lies", args...)
	default:
		j.stats.Wrong++
	}
}

// accused notes who is not believed.
func (j *judge) accused(h *host, e node.Report) {
	switch {
	case e.Type != "audit-differs" && e.Type != "distrusted":
	case j.w.sc.Liar == 0:
		j.fail("%s says of %s: %s", h.id, e.Node, e.Detail)
	case e.Type == "distrusted" && j.w.byID[e.Node].lies():
		j.stats.Found++
	case e.Type == "distrusted":
		j.stats.Banned++
	}
}

// expected is the token that the fault-free run has at an index.
func (c *client) expected(i int) (kevlard.Sampled, bool) {
	if i >= len(c.want) {
		return kevlard.Sampled{}, false
	}
	return c.want[i], true
}
