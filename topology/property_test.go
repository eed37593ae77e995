package topology

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"github.com/kevlard/kevlard"
	"pgregory.net/rapid"
)

// drawView makes a ring in any state: several models, devices, zones, speeds, dead and
// draining nodes, stages of any cut, failed loads.
func drawView(t *rapid.T) View {
	var models []Model
	var weights []Weights
	for i := range rapid.IntRange(1, 3).Draw(t, "models") {
		layers := rapid.IntRange(1, 12).Draw(t, "layers")
		m, w := even(string(rune('a'+i)), layers, int64(rapid.IntRange(1, 200).Draw(t, "layer")), int64(rapid.IntRange(0, 300).Draw(t, "ends")), int64(rapid.IntRange(0, 50).Draw(t, "kv")))
		w.Globals = int64(rapid.IntRange(0, 10).Draw(t, "globals"))
		if layers > 2 && rapid.Bool().Draw(t, "uneven") {
			w.Layers = []Run{{layers - 2, 70}, {2, int64(rapid.IntRange(1, 300).Draw(t, "tail"))}}
		}
		models, weights = append(models, m), append(weights, w)
	}
	var v View
	for i := range rapid.IntRange(0, 9).Draw(t, "nodes") {
		n := Node{ID: kevlard.NodeID(fmt.Sprintf("n%d", i)), Role: "host", State: Alive, Models: models}
		n.State = rapid.SampledFrom([]State{Alive, Alive, Alive, Alive, Suspect, Dead, Draining, Left}).Draw(t, "state")
		n.Zone = rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "zone")
		n.Auto = rapid.IntRange(0, 7).Draw(t, "auto") > 0
		if rapid.IntRange(0, 9).Draw(t, "gateway") == 0 {
			n.Role = "gateway"
		}
		n.Weights = weights
		for range rapid.IntRange(0, 2).Draw(t, "devices") {
			n.Devices = append(n.Devices, Device{int64(rapid.IntRange(0, 3000).Draw(t, "budget")), rapid.SampledFrom([]int{0, 500, 1000, 3000}).Draw(t, "speed")})
		}
		if rapid.IntRange(0, 4).Draw(t, "serve") == 0 {
			n.Serve = []Serve{{Name: "a", Weight: rapid.IntRange(0, 4).Draw(t, "weight"), Stages: rapid.IntRange(0, 5).Draw(t, "stages"), Replicas: rapid.IntRange(0, 3).Draw(t, "replicas")}}
		}
		draw := func(m Model) kevlard.Layers {
			lo := rapid.IntRange(0, m.Layers-1).Draw(t, "lo")
			return kevlard.Layers{Lo: lo, Hi: rapid.IntRange(lo+1, m.Layers).Draw(t, "hi")}
		}
		for _, m := range models {
			if rapid.Bool().Draw(t, "disk") {
				n.Local = append(n.Local, Local{m.ID, []kevlard.Layers{{Lo: 0, Hi: m.Layers}}})
			} else if rapid.Bool().Draw(t, "part") {
				n.Local = append(n.Local, Local{m.ID, []kevlard.Layers{draw(m)}})
			}
		}
		for range rapid.IntRange(0, 2).Draw(t, "held") {
			m := rapid.SampledFrom(models).Draw(t, "model")
			n.Stages = append(n.Stages, Stage{
				Key: kevlard.StageKey{Model: m.ID, Layers: draw(m)}, Class: "c", Device: rapid.IntRange(0, 1).Draw(t, "device"),
				State: rapid.SampledFrom([]StageState{Ready, Ready, Loading, Cold, Stalled}).Draw(t, "is"), Releasing: rapid.IntRange(0, 5).Draw(t, "releasing") == 0,
			})
		}
		if rapid.IntRange(0, 5).Draw(t, "failed") == 0 {
			m := rapid.SampledFrom(models).Draw(t, "model")
			n.Failed = []Failed{{Key: kevlard.StageKey{Model: m.ID, Layers: draw(m)}}}
		}
		v.Nodes = append(v.Nodes, n)
	}
	return v
}

// checkPlan holds what is true of any plan.
func checkPlan(t *rapid.T, v View, p Plan) {
	used := map[string]int64{}
	weights := v.weights()
	for _, m := range p.Models {
		at := 0
		for _, r := range m.Ranges {
			if r.Layers.Lo != at {
				t.Fatalf("ranges overlap or leave a gap at layer %d: %v", at, p)
			}
			at = r.Layers.Hi
			on := map[kevlard.NodeID]bool{}
			for _, h := range r.Holders {
				n, ok := v.Node(h.Node)
				key := kevlard.StageKey{Model: m.Model.ID, Layers: r.Layers}
				if !ok || on[h.Node] || n.State != Alive && n.State != Suspect {
					t.Fatalf("holder %s of %v is not there, twice there or not alive: %v", h.Node, r.Layers, p)
				}
				on[h.Node] = true
				if !n.planned() {
					continue
				}
				w := weights[m.Model.ID]
				used[fmt.Sprint(h.Node, h.Device)] += w.need(r.Layers)
				if used[fmt.Sprint(h.Node, h.Device)] > n.Devices[h.Device].Budget {
					t.Fatalf("%s is over its budget: %v", h.Node, p)
				}
				if h.Source != Resident && (failed(&n, key) || n.State != Alive || !n.mayServe(m.Model.Name)) {
					t.Fatalf("%s is given %v, which it failed to load or may not: %v", h.Node, r.Layers, p)
				}
				if (h.Source == Resident) != (h.Reason == "") {
					t.Fatalf("holder %+v", h)
				}
			}
		}
		if len(m.Ranges) > 0 && at != m.Model.Layers {
			t.Fatalf("ranges end at %d of %d: %v", at, m.Model.Layers, p)
		}
	}
}

func TestPlanHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		p := v.Plan(Goal{})
		checkPlan(t, v, p)
		for _, n := range v.Nodes { // nobody's part is more than the plan
			for _, a := range p.Mine(v, n.ID).Adopt {
				if !p.gives(n.ID, a.Key, a.Device) {
					t.Fatalf("%s adopts %v, not in %v", n.ID, a.Key.Layers, p)
				}
			}
		}
	})
}

// TestPlanIgnoresOrder permutes what has no order.
func TestPlanIgnoresOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		want := v.Plan(Goal{}).String()
		r := rand.New(rand.NewSource(rapid.Int64().Draw(t, "seed")))
		o := View{Nodes: slices.Clone(v.Nodes)}
		r.Shuffle(len(o.Nodes), func(i, j int) { o.Nodes[i], o.Nodes[j] = o.Nodes[j], o.Nodes[i] })
		for i := range o.Nodes {
			n := &o.Nodes[i]
			n.Stages, n.Models, n.Local, n.Weights = slices.Clone(n.Stages), slices.Clone(n.Models), slices.Clone(n.Local), slices.Clone(n.Weights)
			r.Shuffle(len(n.Stages), func(i, j int) { n.Stages[i], n.Stages[j] = n.Stages[j], n.Stages[i] })
			r.Shuffle(len(n.Models), func(i, j int) { n.Models[i], n.Models[j] = n.Models[j], n.Models[i] })
			r.Shuffle(len(n.Local), func(i, j int) { n.Local[i], n.Local[j] = n.Local[j], n.Local[i] })
			r.Shuffle(len(n.Weights), func(i, j int) { n.Weights[i], n.Weights[j] = n.Weights[j], n.Weights[i] })
		}
		if got := o.Plan(Goal{}).String(); got != want {
			t.Fatalf("in another order:\n%s\nwant\n%s", got, want)
		}
	})
}

// TestPlanIsItsOwnPlan: once carried out, nothing is left to do. Where a model can't be
// covered, or a node began with more than its budget, what to keep of it may take a few
// rounds to settle, and settles.
func TestPlanIsItsOwnPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		p := v.Plan(Goal{})
		rounds := 1
		if slices.ContainsFunc(p.Models, func(m ModelPlan) bool { return len(m.Missing) > 0 }) || overBudget(v) {
			rounds = 4
		}
		for left := rounds; ; left-- {
			v = carry(v, p)
			again := v.Plan(Goal{})
			checkPlan(t, v, again)
			rest := ""
			for _, n := range v.Nodes {
				if s := again.Mine(v, n.ID); (n.State == Alive || n.State == Suspect) && len(s.Adopt)+len(s.Release) > 0 {
					rest = fmt.Sprintf("%s has to do %+v", n.ID, s)
				}
			}
			if rest == "" {
				return
			}
			if left == 1 {
				t.Fatalf("%s after %d rounds\n%v\nbefore\n%v", rest, rounds, again, p)
			}
			p = again
		}
	})
}

func overBudget(v View) bool {
	weights := v.weights()
	for _, n := range v.Nodes {
		used := map[int]int64{}
		for _, s := range n.Stages {
			used[s.Device] += weights[s.Key.Model].need(s.Key.Layers)
		}
		for d, u := range used {
			if d < len(n.Devices) && u > n.Devices[d].Budget {
				return true
			}
		}
	}
	return false
}
