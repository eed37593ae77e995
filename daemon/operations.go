package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/membership"
	"github.com/kevlard/kevlard/node"
)

// errStopped is what operations return when the loop has ended.
var errStopped = errors.New("this node is stopping")

// Join joins the ring through addrs (gossip host:port) and verifies that the ring
// shows this node. It fails when nobody answered; with a *kevlard.Failure when this
// node was refused: wrong_secret (403), name_taken (409).
func (d *Daemon) Join(ctx context.Context, addrs []string) (report.Join, error) {
	res, err := d.ring.Join(ctx, addrs)
	out := report.Join{Asked: res.Asked, Answered: res.Answered, Errors: map[string]string{}, Seen: []string{}}
	for a, e := range res.Errors {
		out.Errors[a] = e
	}
	for _, n := range res.Seen {
		out.Seen = append(out.Seen, string(n))
	}
	return out, refusal(err, res.Errors)
}

// refusal turns the error of a join into a failure if it says that this node is not
// let in, which no further try helps.
func refusal(err error, each map[string]string) error {
	if err == nil {
		return nil
	}
	if _, taken := errors.AsType[*membership.NameTakenError](err); taken {
		return &kevlard.Failure{Code: "name_taken", Status: 409, Message: err.Error()}
	}
	for _, why := range each {
		if strings.Contains(why, "a different secret") { // the ring has no error value for it
			return &kevlard.Failure{Code: "wrong_secret", Status: 403, Message: err.Error()}
		}
	}
	return err
}

// ForceLeave declares a dead member gone and frees its name.
func (d *Daemon) ForceLeave(name kevlard.NodeID) error {
	if err := d.ring.ForceLeave(name); err != nil {
		return err
	}
	d.report(node.Report{Type: "force-leave", Node: name})
	return nil
}

// Drain makes a node take no new sessions and give its stages up, or with undo take both
// on again; an empty name means this node. It does not wait: the sessions that run through
// its stages move to other nodes, its own go on. Stages whose layers nobody else can serve
// stay until somebody can.
func (d *Daemon) Drain(ctx context.Context, name kevlard.NodeID, undo bool) error {
	if name == "" || name == d.cfg.Name {
		return d.drainSelf(ctx, undo)
	}
	body, err := json.Marshal(drainCall{undo})
	if err != nil {
		return fmt.Errorf("encode the drain call: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if _, err := d.mesh.Call(ctx, name, methodDrain, body); err != nil {
		if _, known := d.ring.Member(name); !known {
			return fmt.Errorf("drain %s: no such member in ring %s; see `kevlard members`", name, d.cfg.Ring)
		}
		return fmt.Errorf("drain %s: %w", name, err)
	}
	return nil
}

// drainSelf returns when the machine has taken the order. An undo after which the node
// drains on by itself, for a device, is a *kevlard.Failure.
func (d *Daemon) drainSelf(ctx context.Context, undo bool) error {
	if undo && d.leaving.Load() > 0 {
		return &kevlard.Failure{Code: "stopping", Status: 409, Message: "this node is stopping and takes no sessions again: start it again when it has stopped"}
	}
	orders := d.snapshot().node.Orders
	if !d.post(node.Drain{Undo: undo}) {
		return errStopped
	}
	for {
		s, next := d.board.get()
		if undo && s.node.Draining && s.node.Orders != orders {
			return &kevlard.Failure{Code: "device_drain", Status: 409, Message: "the drain that was ordered is undone, and the node drains on by itself: " + s.node.Reason + ": undo again to overrule that"}
		}
		if s.node.Draining != undo {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("drain: %w", context.Cause(ctx))
		case <-d.ended:
			return errStopped
		case <-next:
		}
	}
	typ := "drain"
	if undo {
		typ = "drain-undo"
	}
	d.report(node.Report{Type: typ})
	return nil
}

// Leave drains this node, waits, at most timeout, until the sessions that it owns have
// ended, those of others have moved away from its stages or ended, and others have what
// only this node had, if they are about to; then it says goodbye to the ring, and ends
// Run. The result says whether own sessions were cut off. When ctx ends during the wait,
// nothing is cut: the error is its cause, and the node stays in the ring and draining.
func (d *Daemon) Leave(ctx context.Context, timeout time.Duration) (report.Leave, error) {
	d.leaving.Add(1) // for good, but where this call gives up
	if err := d.drainSelf(ctx, false); err != nil {
		d.leaving.Add(-1)
		return report.Leave{}, err
	}
	d.await(ctx, timeout, func(s *snapshot) bool {
		return len(s.node.Sessions) == 0 && d.streams.count() == 0 && s.hosted() == 0 && !s.node.HandsOver
	})
	if ctx.Err() != nil {
		d.leaving.Add(-1)
		return report.Leave{}, fmt.Errorf("wait for sessions to end: %w: this node stays in the ring and goes on draining; leave again, or undo the drain", context.Cause(ctx))
	}
	cut := d.streams.count()
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveWait)
	defer cancel()
	err := d.ring.Leave(bye)
	select {
	case d.left <- struct{}{}:
	default: // another Leave was first
	}
	return report.Leave{Lost: cut > 0, Cut: cut}, err
}

// await returns when ok holds for the newest snapshot, or after timeout.
func (d *Daemon) await(ctx context.Context, timeout time.Duration, ok func(*snapshot) bool) {
	limit := time.NewTimer(timeout)
	defer limit.Stop()
	for {
		s, next := d.board.get()
		if ok(s) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-d.ended:
			return
		case <-limit.C:
			return
		case <-next:
		}
	}
}

// hosted is how many sessions the stages of this node hold.
func (s *snapshot) hosted() int {
	n := 0
	for _, st := range s.node.Stages {
		n += st.Sessions
	}
	return n
}
