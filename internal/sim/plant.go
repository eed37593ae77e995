package sim

import (
	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
)

// Plant is a bug that is put around the machines, to prove that the judges would
// find it if it were inside them.
type Plant int

// The planted bugs.
const (
	None           Plant = iota
	OldItems             // a stage takes items of terms that it has fenced
	NoBarrier            // a stage does not wait for the running batch before it frees or re-prepares
	StartTooFar          // a stage claims one position more than it holds
	StartUnchecked       // the owner starts one position late and the stage lets it
	OldSteps             // the owner takes the steps of an older term
	AckEarly             // a standby acknowledges rows before they are stored
	TruncateLess         // a load that met damage claims one position more than it filled
	RowsShifted          // rows are read one cell before their own
	MatchPosition        // a copy is found by its positions, whatever their tokens are
	Unsalted             // KV is named by its tokens alone, whoever's it is
	PromisedTwice        // witnesses promise one epoch to several candidates
	DeafOwner            // an owner does not listen to who tells it of a newer epoch
	UnpinEarly           // the places of a load are given up while it still reads
)

// plantIn changes what a machine is about to see.
func (w *world) plantIn(h *host, ev node.Event) node.Event {
	switch w.plant {
	case OldItems:
		return w.oldItems(h, ev)
	case NoBarrier:
		w.noBarrier(h, ev)
	case StartTooFar:
		if r, ok := ev.(node.Received); ok {
			if p, ok := r.Message.(protocol.Prepared); ok && p.Refusal == "" {
				p.Have++
				r.Message = p
				return r
			}
		}
	case StartUnchecked:
		return startUnchecked(ev)
	case OldSteps:
		return w.oldSteps(h, ev)
	case PromisedTwice:
		return w.promisedTwice(ev)
	case DeafOwner:
		return deafOwner(ev)
	case MatchPosition:
		return w.matchPosition(ev)
	case Unsalted:
		return unsalted(ev)
	}
	return ev
}

// oldSteps lets an owner believe any last stage that its session ever had. The
// fence is not the only guard: links keep order, so a last stage that answers a
// prepare has nothing older under way, and its name is checked too.
func (w *world) oldSteps(h *host, ev node.Event) node.Event {
	r, ok := ev.(node.Received)
	if !ok {
		return ev
	}
	s, ok := r.Message.(protocol.Step)
	if !ok {
		return ev
	}
	c := w.judge.clients[s.Session]
	if c == nil || s.Fence.Compare(c.fence) >= 0 {
		return ev
	}
	for _, x := range h.m.Snapshot(w.now).Sessions {
		if x.ID == s.Session && len(x.Route) > 0 {
			r.From = x.Route[len(x.Route)-1].Node
		}
	}
	s.Fence = c.fence
	r.Message = s
	return r
}

// matchPosition shows the machine the tokens of another session in place of its own,
// as if tokens did not matter.
func (w *world) matchPosition(ev node.Event) node.Event {
	r, ok := ev.(node.Received)
	if !ok {
		return ev
	}
	as := func(id kevlard.SessionID, salt string, tokens []kevlard.Token) []kevlard.Token {
		for _, c := range w.judge.order {
			if c.id == id {
				break
			}
			if c.req.Salt == salt {
				n := min(len(tokens), len(c.req.Prompt))
				return append(append([]kevlard.Token(nil), c.req.Prompt[:n]...), tokens[n:]...)
			}
		}
		return tokens
	}
	switch m := r.Message.(type) {
	case protocol.Prepare:
		m.Tokens = as(m.Session, m.Salt, m.Tokens)
		r.Message = m
	case protocol.Offer:
		m.Tokens = as(m.Session, m.Salt, m.Tokens)
		r.Message = m
	}
	return r
}

// unsalted hides from a machine whose a session is.
func unsalted(ev node.Event) node.Event {
	r, ok := ev.(node.Received)
	if !ok {
		return ev
	}
	switch m := r.Message.(type) {
	case protocol.Prepare:
		m.Salt = ""
		r.Message = m
	case protocol.Offer:
		m.Salt = ""
		r.Message = m
	case protocol.Fetch:
		m.Salt = ""
		r.Message = m
	case protocol.Seek:
		m.Salt = ""
		r.Message = m
	}
	return r
}

func (w *world) oldItems(h *host, ev node.Event) node.Event {
	a, ok := ev.(node.Arrived)
	if !ok {
		return ev
	}
	items := make([]protocol.Item, len(a.Frame.Items))
	for i, it := range a.Frame.Items {
		if f, ok := w.judge.prepared[holding{h.index, it.Session, it.Lo}]; ok && it.Fence.Compare(f) < 0 {
			it.Fence = f
		}
		items[i] = it
	}
	a.Frame.Items = items
	return a
}

// noBarrier answers for the running batch before it has ended: the machine goes
// on at once, the engine still writes.
func (w *world) noBarrier(h *host, ev node.Event) {
	r, ok := ev.(node.Received)
	if !ok {
		return
	}
	var key kevlard.StageKey
	switch m := r.Message.(type) {
	case protocol.Prepare:
		key = m.Stage
	case protocol.Close:
		for k := range h.engines {
			if k.Layers.Lo == m.Lo {
				key = k
			}
		}
	default:
		return
	}
	en := h.engines[key]
	if en == nil || en.gone || !en.busy || en.early || en.doomed || en.frozen > 0 {
		return
	}
	rows, sampled, err := en.toy.Forward(en.batch.Batch)
	if err != nil {
		w.judge.fail("%v", err)
		return
	}
	en.early = true
	h.step(node.BatchDone{Stage: key, Run: en.run, Batch: en.batch.Batch.ID, Rows: rows, Sampled: sampled})
}

// startUnchecked skips a position at the start of a prefill. The tokens move up,
// so that no check of positions can see it.
func startUnchecked(ev node.Event) node.Event {
	a, ok := ev.(node.Arrived)
	if !ok {
		return ev
	}
	items := make([]protocol.Item, len(a.Frame.Items))
	copy(items, a.Frame.Items)
	for i, it := range items {
		if n := len(it.Tokens); it.Start && it.Lo == 0 && n > 1 {
			items[i].Tokens = append(append([]kevlard.Token(nil), it.Tokens[1:]...), it.Tokens[n-1])
		}
	}
	a.Frame.Items = items
	return a
}
