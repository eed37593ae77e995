package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/mesh"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
)

// The methods that nodes call on each other over the mesh. Whoever holds the
// cluster secret may call them.
const (
	methodRecord   = "record"   // the node record, sealed
	methodSessions = "sessions" // report.Sessions of the node, in JSON
	methodDrain    = "drain"    // a drainCall in JSON; answers nothing
	methodKeys     = "keys"     // a keysCall in JSON; answers a keysAnswer
	methodLink     = "link"     // a linkCall in JSON; answers a linkAnswer
	methodClock    = "clock"    // answers a clockAnswer
)

type drainCall struct {
	Undo bool `json:"undo"`
}

// handler connects the mesh to the loop. Its functions block while the inbox is
// full, or a frame's bytes do not fit in, which holds up the one connection that
// they are called by.
func (d *Daemon) handler() mesh.Handler {
	return mesh.Handler{
		Control: func(from mesh.Peer, msg []byte) {
			d.ring.Vouch(from.Node, from.Boot)
			m, err := d.codec.DecodeMessage(msg)
			if err != nil {
				d.garbage(from, err)
				return
			}
			if p, ok := m.(protocol.Ping); ok {
				d.records.hear(from.Node, from.Boot, p.Record)
			}
			d.post(node.Received{From: from.Node, Boot: from.Boot, Message: m})
		},
		Data: func(from mesh.Peer, header, body []byte) {
			f, err := d.codec.DecodeFrame(header, body)
			if err != nil {
				d.garbage(from, err)
				return
			}
			d.postFrame(node.Arrived{From: from.Node, Boot: from.Boot, Frame: f}, int64(len(header)+len(body)))
		},
		Call: d.answer,
		Up: func(p mesh.Peer) {
			d.outages.up(p.Node)
			d.records.stir()
			d.post(node.PeerUp{Node: p.Node, Boot: p.Boot})
		},
		Down: func(p mesh.Peer, err error) {
			d.outages.down(p.Node)
			if !errors.Is(err, mesh.ErrRemoved) && !errors.Is(err, mesh.ErrMoved) {
				d.suspect(p)
			}
			d.post(node.PeerDown{Node: p.Node, Cause: cause(err)})
		},
		Refused: d.refused,
	}
}

// refused tells of a node that is not let in, by the mesh or, without its name, by gossip.
func (d *Daemon) refused(name, addr, reason string) {
	d.report(node.Report{Type: "refused-peer", Node: kevlard.NodeID(name), Cause: reason, Detail: addr})
}

// garbage counts what a peer sent and this build can't read; the connection goes
// on. One event a minute and peer is enough.
func (d *Daemon) garbage(from mesh.Peer, err error) {
	d.metrics.garbage.Inc()
	if d.seldom.allow(string(from.Node)) {
		d.report(node.Report{Type: "bad-message", Node: from.Node, Cause: "format", Detail: err.Error()})
	}
}

// cause names why a link broke, in the words of failovers.
func cause(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, mesh.ErrRemoved):
		return "dead" // only the ring's word takes a peer out of the set
	case errors.As(err, &timeout) && timeout.Timeout():
		return "keepalive"
	}
	return "reset"
}

// answer serves the calls of other nodes.
func (d *Daemon) answer(ctx context.Context, from mesh.Peer, method string, body []byte) ([]byte, error) {
	switch method {
	case methodRecord:
		return d.records.sealed(), nil
	case methodWeights:
		return d.weights.server.Answer(ctx, from.Node, body)
	case methodBulkKey:
		return d.bulkKey(from.ID), nil
	case methodRDMA:
		return d.answerRDMA(ctx, from.Node, body)
	case methodFind:
		return d.find(ctx, body)
	case methodSessions:
		return json.Marshal(d.ownSessions())
	case methodDrain:
		var c drainCall
		if err := readCall("the drain call", body, &c); err != nil {
			return nil, err
		}
		return nil, d.drainSelf(ctx, c.Undo)
	case methodKeys:
		return d.answerKeys(body)
	case methodLink:
		return d.answerLink(body)
	case methodClock:
		return answerClock()
	}
	return nil, fmt.Errorf("node %s does not know the method %.40q; it runs version %s", d.cfg.Name, method, d.cfg.Version)
}

// errEncode marks what the codec refuses, which it does for its size alone.
var errEncode = errors.New("not encoded")

// send carries out Send. What cannot even be queued comes back as SendFailed.
func (d *Daemon) send(e node.Send) {
	if e.To == d.cfg.Name {
		d.own.push(node.Received{From: d.cfg.Name, Boot: d.boot, Message: e.Message})
		return
	}
	d.sendAll(node.SendAll{To: []kevlard.NodeID{e.To}, Message: e.Message})
}

// sendAll carries out SendAll: what is the same for all is encoded once.
func (d *Daemon) sendAll(e node.SendAll) {
	if p, ok := e.Message.(protocol.Ping); ok {
		p.Record = d.records.version()
		e.Message = p
	}
	b, bad := d.codec.EncodeMessage(e.Message)
	for _, to := range e.To {
		var err error
		if bad != nil {
			err = fmt.Errorf("%w: %w", errEncode, bad)
		} else {
			err = d.mesh.Control(to, b)
		}
		d.sent(to, err, sessionOf(e.Message))
	}
}

// sessionOf returns the session that a message is about, "" if there is none.
func sessionOf(m protocol.Message) kevlard.SessionID {
	switch m := m.(type) {
	case protocol.Prepare:
		return m.Session
	case protocol.Prepared:
		return m.Session
	case protocol.Close:
		return m.Session
	case protocol.Refused:
		return m.Session
	case protocol.Step:
		return m.Session
	case protocol.Probe:
		return m.Session
	case protocol.Probed:
		return m.Session
	case protocol.Lost:
		return m.Session
	}
	return "" // of the link: Ping, Pong, Renew
}

// sendFrame carries out SendFrame. The mesh copies header and rows.
func (d *Daemon) sendFrame(e node.SendFrame) {
	if e.To == d.cfg.Name {
		d.own.push(node.Arrived{From: d.cfg.Name, Boot: d.boot, Frame: e.Frame})
		return
	}
	header, body, err := d.codec.EncodeFrame(e.Frame)
	if err != nil {
		err = fmt.Errorf("%w: %w", errEncode, err)
	} else {
		err = d.mesh.Data(e.To, header, body...)
	}
	sessions := make([]kevlard.SessionID, len(e.Frame.Items))
	for i, it := range e.Frame.Items {
		sessions[i] = it.Session
	}
	d.sent(e.To, err, sessions...)
}

// sent tells the machine what was not sent. That a node can't be reached is told
// once, until a send to that node succeeds again: what the machine does about it
// may well be another message to the same node, and the loop would never get out of
// that. A full queue or a size is told for each session, which then waits or ends.
// Being not connected is ordinary; anything else is an event too.
func (d *Daemon) sent(to kevlard.NodeID, err error, sessions ...kevlard.SessionID) {
	if err == nil {
		delete(d.unsendable, to)
		return
	}
	why := node.SendReset
	switch {
	case errors.Is(err, mesh.ErrQueueFull):
		why = node.SendFull
	case errors.Is(err, mesh.ErrTooLarge), errors.Is(err, errEncode):
		why = node.SendOversize
	}
	if why == node.SendReset && d.unsendable[to] {
		return
	}
	if !errors.Is(err, mesh.ErrNotConnected) && !errors.Is(err, mesh.ErrNoPeer) && d.seldom.allow("send "+string(to)) {
		d.report(node.Report{Type: "send-failed", Node: to, Cause: string(why), Detail: err.Error()})
	}
	if why == node.SendReset {
		d.unsendable[to] = true
		d.own.push(node.SendFailed{Node: to})
		return
	}
	for _, s := range sessions {
		if s != "" {
			d.own.push(node.SendFailed{Node: to, Cause: why, Session: s})
		}
	}
}
