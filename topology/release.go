package topology

import (
	"cmp"
	"slices"

	"github.com/kevlard/kevlard"
)

// release gives up what the plan does not want here, in two steps; see Reformer.
func (r *Reformer) release(now kevlard.Instant, v View, self *Node, share Share, cramped map[int]bool, out []Action) []Action {
	surplus := map[kevlard.StageKey]bool{}
	for _, s := range share.Release {
		surplus[s.Key] = true
	}
	for _, s := range self.Stages {
		if surplus[s.Key] {
			continue
		}
		if _, ok := r.announced[s.Key]; ok || s.Releasing {
			delete(r.announced, s.Key)
			out = append(out, Action{Do: Retain, Adoption: Adoption{Key: s.Key, Device: s.Device}})
		}
	}
	for k := range r.unwanted {
		if !surplus[k] {
			delete(r.unwanted, k)
		}
	}
	for k := range r.announced {
		if !surplus[k] {
			delete(r.announced, k)
		}
	}
	for _, s := range share.Release {
		out = r.giveUp(now, v, self, s, cramped[s.Device], out)
	}
	return out
}

func (r *Reformer) giveUp(now kevlard.Instant, v View, self *Node, s Surplus, room bool, out []Action) []Action {
	since, ok := r.unwanted[s.Key]
	if !ok {
		since = now
		r.unwanted[s.Key] = now
	}
	act := func(do Do) {
		out = append(out, Action{Do: do, Adoption: Adoption{Key: s.Key, Device: s.Device, Reason: s.Reason}})
	}
	i := slices.IndexFunc(self.Stages, func(o Stage) bool { return o.Key == s.Key && o.Device == s.Device })
	stage := self.Stages[i]
	at, announced := r.announced[s.Key]
	if stage.Releasing && !announced { // announced in a former life of this machine
		at, announced = now, true
		r.announced[s.Key] = now
	}
	settled := since.Add(r.settle.Release)
	switch {
	case room || self.State == Draining:
		settled = since
	case s.Reason == Rebalance || s.Reason == Resplit:
		settled = max(settled, min(r.quiet.Add(r.settle.Newcomer), since.Add(5*r.settle.Newcomer)))
	}
	switch {
	case now < settled:
		r.wake(settled)
	case stage.State != Ready || room && r.useless(now, s.Key):
		delete(r.announced, s.Key)
		act(Release)
	case !r.spare(now, v, s.Key, stage.Class, room):
		if announced && self.State != Draining {
			delete(r.announced, s.Key)
			act(Retain)
		}
	case !announced:
		r.announced[s.Key] = now
		r.wake(now.Add(r.settle.Release))
		act(Announce)
	case now < at.Add(r.settle.Release):
		r.wake(at.Add(r.settle.Release))
	default:
		delete(r.announced, s.Key)
		act(Release)
	}
	return out
}

// watchRoutes notes since when each model can't be served with what is ready or being
// loaded, as far as this node has heard.
func (r *Reformer) watchRoutes(now kevlard.Instant, v View) {
	next := map[kevlard.Digest]kevlard.Instant{}
	for _, m := range r.plan.Models {
		loading := slices.ContainsFunc(v.Nodes, func(n Node) bool {
			return (n.State == Alive || n.State == Suspect) && slices.ContainsFunc(n.Stages, func(s Stage) bool {
				return s.Key.Model == m.Model.ID && (s.State == Loading || s.State == Cold)
			})
		})
		if loading || v.served(m.Model.ID) {
			continue
		}
		next[m.Model.ID] = now
		if since, ok := r.unserved[m.Model.ID]; ok {
			next[m.Model.ID] = since
		}
	}
	r.unserved = next
}

// useless reports whether a model has not been served for a while, and could be if the
// plan were carried out: then giving up a stage for it costs nobody anything.
func (r *Reformer) useless(now kevlard.Instant, k kevlard.StageKey) bool {
	m, ok := r.plan.model(k.Model)
	return ok && len(m.Missing) == 0 && r.idle(now, k.Model)
}

// idle reports whether news of anything that serves a model would have come by now.
func (r *Reformer) idle(now kevlard.Instant, model kevlard.Digest) bool {
	since, ok := r.unserved[model]
	if ok && now < since.Add(r.settle.Release) {
		r.wake(since.Add(r.settle.Release))
		return false
	}
	return ok
}

func (p Plan) model(id kevlard.Digest) (ModelPlan, bool) {
	for _, m := range p.Models {
		if m.Model.ID == id {
			return m, true
		}
	}
	return ModelPlan{}, false
}

// spare reports whether a stage can go: a route remains (Without), and, unless the stage
// has to make room, the holders that the plan wants instead are ready.
func (r *Reformer) spare(now kevlard.Instant, v View, k kevlard.StageKey, class string, room bool) bool {
	m, ok := r.plan.model(k.Model)
	if !ok { // the configuration does not want it here, or nobody knows enough of it to plan
		self, _ := v.Node(r.self)
		model, known := v.Model(k.Model)
		return known && !self.mayServe(model.Name)
	}
	remains := v.Without(r.self, k, class, func(o kevlard.StageKey) bool {
		_, going := r.announced[o]
		return going
	})
	if remains != OtherRoute {
		return room && remains == SameLayers && r.idle(now, k.Model)
	}
	if room {
		return true
	}
	for _, p := range m.Ranges {
		if p.Layers.Hi <= k.Layers.Lo || k.Layers.Hi <= p.Layers.Lo {
			continue
		}
		for _, h := range p.Holders {
			n, ok := v.Node(h.Node)
			if !ok || !slices.ContainsFunc(n.Stages, func(s Stage) bool {
				return s.Key == kevlard.StageKey{Model: k.Model, Layers: p.Layers} && s.State == Ready
			}) {
				return false
			}
		}
	}
	return true
}

// served reports whether a model has a route now.
func (v View) served(id kevlard.Digest) bool {
	m, ok := v.Model(id)
	return ok && v.routes(m, answers)
}

func answers(n *Node, s Stage) bool {
	return (n.State == Alive || n.State == Suspect) && s.State == Ready
}

// routes reports whether the stages for which take answers true make a route: ranges
// that follow each other from the first layer to the last, of one numerics class.
func (v View) routes(m Model, take func(*Node, Stage) bool) bool {
	type hop struct {
		class  string
		layers kevlard.Layers
	}
	var hops []hop
	for i := range v.Nodes {
		n := &v.Nodes[i]
		for _, s := range n.Stages {
			if s.Key.Model == m.ID && valid(s.Key.Layers) && s.Key.Layers.Hi <= m.Layers && take(n, s) {
				hops = append(hops, hop{s.Class, s.Key.Layers})
			}
		}
	}
	slices.SortFunc(hops, func(a, b hop) int { return cmp.Or(cmp.Compare(a.class, b.class), a.layers.Compare(b.layers)) })
	hops = slices.Compact(hops)
	reached := map[int]bool{}
	class := ""
	for i, h := range hops {
		if i == 0 || h.class != class {
			clear(reached)
			reached[0] = true
			class = h.class
		}
		if reached[h.layers.Lo] {
			reached[h.layers.Hi] = true
		}
		if reached[m.Layers] {
			return true
		}
	}
	return false
}
