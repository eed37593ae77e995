package sim

import (
	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
)

// noteEvent adds what a machine sees to the hash and the trace.
func (w *world) noteEvent(h *host, ev node.Event) {
	w.fold(uint64(w.now), uint64(h.index))
	switch ev := ev.(type) {
	case node.Wake:
		w.fold(1)
		return
	case node.Received:
		w.fold(2)
		w.foldText(string(ev.From))
		w.foldMessage(ev.Message)
	case node.Arrived:
		w.fold(3)
		for _, it := range ev.Frame.Items {
			w.foldText(string(it.Session))
			w.fold(it.Fence.Term, uint64(it.Pos), uint64(len(it.Tokens)))
		}
	case node.BatchDone:
		w.fold(4, ev.Batch)
		for _, t := range ev.Sampled {
			w.fold(uint64(t.Token))
		}
	case node.ViewChanged:
		w.fold(5)
		for _, n := range ev.View.Nodes {
			w.foldText(string(n.State))
			w.foldText(string(n.Boot))
		}
	case node.PeerUp:
		w.fold(6)
		w.foldText(string(ev.Boot))
	case node.PeerDown:
		w.fold(7)
		w.foldText(string(ev.Node))
	case node.Exported:
		w.fold(9, ev.ID)
	case node.Loaded:
		w.fold(10, ev.ID, uint64(ev.N))
	case node.RowsArrived:
		w.fold(11, ev.Piece, uint64(ev.Rows.Pos), uint64(len(ev.Rows.Tokens)))
		w.foldText(string(ev.From) + string(ev.Rows.Session))
	case node.RowsStored:
		w.fold(12, ev.Piece)
	case node.StoredSent:
		w.fold(14, ev.ID)
	case node.RowsUnsent:
		w.fold(13)
		w.foldText(string(ev.To) + string(ev.Session))
	case node.StoredUnsent:
		w.fold(15, uint64(ev.From))
		w.foldText(string(ev.To) + string(ev.Session))
	default:
		w.fold(8)
	}
	if w.trace != nil {
		w.traceEvent(h, ev)
	}
}

func (w *world) foldMessage(m protocol.Message) {
	if id, f, ok := fenceOf(m); ok {
		w.foldText(string(id))
		w.fold(f.Term)
	}
	switch m := m.(type) {
	case protocol.Step:
		w.fold(uint64(m.Next), uint64(m.Token))
	case protocol.Prepared:
		w.fold(uint64(m.Have))
	case protocol.Stored:
		w.foldText(string(m.Session) + string(m.Refusal))
		w.fold(m.Fence.Term, uint64(m.Through))
	case protocol.Prepare:
		w.foldText(string(m.Session))
		w.fold(m.Fence.Term, uint64(len(m.Tokens)))
	}
}

func (w *world) traceEvent(h *host, ev node.Event) {
	switch ev := ev.(type) {
	case node.Received:
		switch m := ev.Message.(type) {
		case protocol.Ping, protocol.Pong, protocol.Renew:
		case protocol.Prepare:
			w.say(h.id, "<prepare", "from %s: %s %v %v tokens=%d next=%s solo=%v recovery=%v", ev.From, m.Session, m.Fence, m.Stage.Layers, len(m.Tokens), m.Next, m.Solo, m.Recovery)
		default:
			w.say(h.id, "<message", "from %s: %T %+v", ev.From, m, m)
		}
	case node.Arrived:
		for _, it := range ev.Frame.Items {
			w.say(h.id, "<item", "from %s: %s %v lo=%d [%d,%d) start=%v sample=%v", ev.From, it.Session, it.Fence, it.Lo, it.Pos, it.End(), it.Start, it.Sample)
		}
	case node.ViewChanged:
		for _, n := range ev.View.Nodes {
			w.say(h.id, "<view", "%s %s %s stages=%v", n.ID, n.State, n.Boot, len(n.Stages))
		}
	case node.BatchDone:
		w.say(h.id, "<batch", "%v batch %d tokens %v", ev.Stage.Layers, ev.Batch, kevlard.Tokens(ev.Sampled))
	case node.RowsArrived:
		w.say(h.id, "<rows", "%d from %s: %s %v %v [%d,%d) intact=%v", ev.Piece, ev.From, ev.Rows.Session, ev.Rows.Fence, ev.Rows.Stage.Layers, ev.Rows.Pos, ev.Rows.End(), ev.Intact)
	default:
		w.say(h.id, "<event", "%T %+v", ev, ev)
	}
}

// noteEffect adds what a machine asks for to the hash and the trace.
func (w *world) noteEffect(h *host, e node.Effect) {
	switch e := e.(type) {
	case node.Emit:
		w.fold(20, uint64(e.Index), uint64(e.Token))
		w.say(h.id, ">emit", "%s %d %d", e.Session, e.Index, e.Token)
	case node.Finish:
		w.fold(21)
		w.foldText(e.Reason)
	case node.Report:
		w.fold(22)
		w.foldText(e.Type + e.Cause)
		w.say(h.id, ">report", "%s %s node=%s cause=%s %s", e.Type, e.Session, e.Node, e.Cause, e.Detail)
	case node.RunBatch:
		w.fold(23, e.Batch.ID, uint64(len(e.Batch.Parts)))
		for _, p := range e.Batch.Parts {
			w.fold(uint64(p.Cell), uint64(p.Pos), uint64(len(p.Tokens)))
			w.say(h.id, ">batch", "%v %d: cell %d [%d,+%d) sample=%v", e.Stage.Layers, e.Batch.ID, p.Cell, p.Pos, len(p.Tokens), p.Sample)
		}
	case node.Send:
		w.fold(24)
		w.foldText(string(e.To))
	case node.SendAll:
		w.fold(24, uint64(len(e.To)))
	case node.SendFrame:
		w.fold(25, uint64(len(e.Frame.Items)))
	case node.Export:
		w.fold(27, e.ID, uint64(e.Cell), uint64(e.Rows.Pos), uint64(len(e.Rows.Tokens)))
		w.say(h.id, ">export", "%d to %s: %s %v %v [%d,%d) cell %d", e.ID, e.To, e.Rows.Session, e.Rows.Fence, e.Stage.Layers, e.Rows.Pos, e.Rows.End(), e.Cell)
	case node.Load:
		w.fold(28, e.ID, uint64(e.Cell), uint64(length(e.From)))
		w.say(h.id, ">load", "%d: %s %v [%d,+%d) cell %d from %v", e.ID, e.Session, e.Stage.Layers, e.Pos, length(e.From), e.Cell, e.From)
	case node.SendStored:
		w.fold(30, e.ID, uint64(e.Rows.Pos), uint64(len(e.Rows.Tokens)))
		w.say(h.id, ">resend", "%d to %s: %s %v %v [%d,%d)", e.ID, e.To, e.Rows.Session, e.Rows.Fence, e.Stage.Layers, e.Rows.Pos, e.Rows.End())
	case node.StoreRows:
		w.fold(29, e.Piece)
		w.say(h.id, ">store", "%d to %v", e.Piece, e.To)
	default:
		w.fold(26)
	}
}
