package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// Resume gives a session whose client is gone a client here, wherever it is owned. Its
// stream begins with the first token of the answer again. accept is shown the session's
// envelope before anything changes; on an error the session stays as it is, and Resume
// fails with that. If nobody that lives owns the session, this node takes it over.
// Other errors are *kevlard.Failure: session_not_found (404), session_busy and
// session_no_quorum (409), overloaded (429), draining and owner_lost (503: try again).
// What goes wrong later comes
// through the stream. alive finds out whether the client is still there, for others that
// claim to be it; nil: nobody knows.
func (d *Daemon) Resume(ctx context.Context, id kevlard.SessionID, accept func(envelope []byte) error, alive func() bool) (*Stream, error) {
	return d.resume(ctx, id, accept, alive, 0)
}

// resume is Resume for a reader that has the first skip tokens.
func (d *Daemon) resume(ctx context.Context, id kevlard.SessionID, accept func([]byte) error, alive func() bool, skip int) (*Stream, error) {
	if len(id) == 0 || len(id) > protocol.MaxID {
		return nil, notFound(id)
	}
	for try := 0; ; try++ {
		at, err := d.locate(ctx, id)
		switch {
		case err != nil:
			return nil, err
		case at.owner != d.cfg.Name && d.snapshot().node.Draining:
			return nil, &kevlard.Failure{Code: "draining", Status: 503, Message: "this node is draining and takes no sessions of others; ask another node"}
		case at.owner == "" && try == resumeTries: // takeOver has found it each time
			return nil, silent(id)
		}
		if at.Owned || at.Recorded {
			if err := accept(at.Envelope); err != nil {
				return nil, err
			}
		}
		if at.owner == "" {
			if err := d.takeOver(ctx, id, at.Recorded); err != nil {
				return nil, err
			}
			continue // it is owned here now, or somebody was faster
		}
		if !at.Running {
			return d.attach(ctx, id, at.owner, alive, skip)
		}
		if try == resumeTries {
			return nil, &kevlard.Failure{Code: "session_busy", Status: 409, Message: fmt.Sprintf("session %s is running, and its client is connected to node %s or through it", id, at.owner)}
		}
		select { // a client that is found to be gone is told to the owner first
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(busyPause):
		}
	}
}

// silent is what a client is told whose session lives at nodes that do not answer.
func silent(id kevlard.SessionID) *kevlard.Failure {
	return &kevlard.Failure{Code: node.CodeOwnerLost, Status: 503, Message: fmt.Sprintf("session %s exists, but the nodes that know it do not say enough of it in time: try again", id)}
}

func notFound(id kevlard.SessionID) *kevlard.Failure {
	return &kevlard.Failure{Code: "session_not_found", Status: 404, Message: fmt.Sprintf("session %.128s is not known: it was never here, or its time to be resumed is over", id)}
}

// attach makes the stream of a client that comes back.
func (d *Daemon) attach(ctx context.Context, id kevlard.SessionID, owner kevlard.NodeID, alive func() bool, skip int) (*Stream, error) {
	s := d.newStream(id, "", protocol.MaxTokens)
	if i := strings.LastIndexByte(string(id), '.'); i > 0 {
		s.name = id[:i]
	}
	s.alive, s.skip = alive, skip
	s.again = func(ctx context.Context, had int) (*Stream, error) {
		return d.resume(ctx, id, func([]byte) error { return nil }, alive, had)
	}
	if f := d.streams.add(s); f != nil {
		return nil, f
	}
	var ev node.Event = node.Resume{Session: id, Client: s.client}
	if owner != d.cfg.Name {
		ev = node.Follow{Session: id, Owner: owner, Client: s.client}
	}
	if !d.post(ev) {
		d.streams.remove(id)
		return nil, stopping()
	}
	s.watch(ctx)
	return s, nil
}

// whereabouts is what one node knows of a session.
type whereabouts struct {
	owner    kevlard.NodeID // "": nobody who was asked owns it
	Owned    bool           `json:"owned"`
	Running  bool           `json:"running"`
	Recorded bool           `json:"recorded"` // by a witness
	Epoch    uint64         `json:"epoch"`
	Envelope []byte         `json:"envelope"`
}

// locate asks all nodes that live who owns a session. Of several who say so, one of
// which was superseded and does not know it yet, the newest counts. If nobody does, it
// returns what a witness has, if one has answered.
func (d *Daemon) locate(ctx context.Context, id kevlard.SessionID) (whereabouts, error) {
	here, err := d.whereabouts(ctx, id)
	if err != nil || here.Owned {
		here.owner = d.cfg.Name
		return here, err
	}
	body, err := json.Marshal(findCall{id})
	if err != nil {
		return whereabouts{}, fmt.Errorf("encode the find call: %w", err)
	}
	asking, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	var mu sync.Mutex
	best := here // a witness's, if this node is one
	var asks sync.WaitGroup
	slots := make(chan struct{}, maxFinds)
	for _, n := range d.snapshot().view.Nodes {
		if n.ID == d.cfg.Name || n.State == topology.Dead || n.State == topology.Left {
			continue
		}
		asks.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			w := d.askWhereabouts(asking, n.ID, body)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case w.Owned && (best.owner == "" || w.Epoch > best.Epoch):
				best, best.owner = w, n.ID
				time.AfterFunc(findGrace, cancel) // others may contradict
			case w.Recorded && best.owner == "" && w.Epoch > best.Epoch:
				best = w
			}
		})
	}
	asks.Wait()
	if best.owner == "" && ctx.Err() != nil {
		return best, context.Cause(ctx)
	}
	return best, nil
}

// askWhereabouts asks one node; one that does not answer owns nothing that could go on.
func (d *Daemon) askWhereabouts(ctx context.Context, n kevlard.NodeID, body []byte) whereabouts {
	var w whereabouts
	b, err := d.mesh.Call(ctx, n, methodFind, body)
	if err == nil {
		err = readCall("where a session is", b, &w)
	}
	if err != nil {
		d.log.Debug("owner not learned", "peer", n, "err", err)
		return whereabouts{}
	}
	return w
}

// methodFind asks for a session's whereabouts; the answer is in JSON.
const methodFind = "find"

type findCall struct {
	Session kevlard.SessionID `json:"session"`
}

// find serves the call. The client that the session has here, if any, is asked whether it
// is still there: another says that it is it.
func (d *Daemon) find(ctx context.Context, body []byte) ([]byte, error) {
	var c findCall
	if err := readCall("the find call", body, &c); err != nil {
		return nil, err
	}
	w, err := d.whereabouts(ctx, c.Session)
	if err != nil {
		return nil, err
	}
	return json.Marshal(w)
}

// whereabouts is what this node knows of a session.
func (d *Daemon) whereabouts(ctx context.Context, id kevlard.SessionID) (whereabouts, error) {
	d.streams.challenge(id)
	f, err := d.finds.ask(ctx, d, func(number uint64) node.Event { return node.Find{Session: id, Number: number} })
	if err != nil {
		return whereabouts{}, err
	}
	return whereabouts{Owned: f.Owned, Running: f.Running, Recorded: f.Recorded, Epoch: f.Epoch, Envelope: f.Envelope}, nil
}

// failureOf is what a client is told of an error of Resume.
func failureOf(err error) *kevlard.Failure {
	if f, ok := errors.AsType[*kevlard.Failure](err); ok {
		return f
	}
	return &kevlard.Failure{Code: node.CodeOwnerLost, Status: 503, Message: fmt.Sprintf("the node that ran the session is gone: %v", err)}
}
