package mesh

import (
	"fmt"
	"sync"

	"github.com/libp2p/go-libp2p/core/transport"

	"github.com/kevlard/kevlard"
)

// guest is a peer that dialled us: the connections of its latest link. The first
// of them to break ends both. All fields are guarded by guests.mu.
type guest struct {
	peer   Peer
	link   uint64
	conns  map[class]*inbound
	whole  bool // both classes have been admitted
	ending bool // one has broken
}

// inbound is one accepted and admitted connection.
type inbound struct {
	class class
	conn  transport.CapableConn
	done  chan struct{} // closed when no frame of it can reach the handler any more
	guest *guest        // set by enter
}

// guests are the peers that dialled us, by peer ID.
type guests struct {
	mu   sync.Mutex
	byID map[string]*guest
}

// node returns who is connected under a peer ID.
func (g *guests) node(id string) (kevlard.NodeID, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.byID[id]; now != nil && !now.ending {
		return now.peer.Node, true
	}
	return "", false
}

// whole reports whether both connections from a peer ID are up.
func (g *guests) whole(id string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.byID[id]
	return now != nil && now.whole && !now.ending
}

// enter lets an arrival in, or says why not. Connections of an older link or boot
// of the same peer have ended when it returns, so that nothing from them is
// delivered after something from the newer.
func (g *guests) enter(a arrival, in *inbound) (reason string) {
	old, reason := g.seat(a, in)
	for _, c := range old {
		// The older connection is of no use any more, however closing it goes.
		_ = c.conn.Close()
		select {
		case <-c.done:
		case <-session(in.conn).CloseChan(): // admission has timed out meanwhile
			return "the older connection of the same peer does not end"
		}
	}
	return reason
}

// seat enters the arrival in the table and returns the connections it replaces.
func (g *guests) seat(a arrival, in *inbound) (old []*inbound, reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.byID[a.peer.ID]
	if now == nil {
		if len(g.byID) >= maxGuests {
			return nil, fmt.Sprintf("too many peers: %d are connected", maxGuests)
		}
	} else {
		if now.peer.Node != a.peer.Node {
			return nil, fmt.Sprintf("name mismatch: this peer ID is connected as node %q and claims to be %q", now.peer.Node, a.peer.Node)
		}
		if now.peer.Boot == a.peer.Boot {
			if a.link < now.link || a.link == now.link && (now.ending || now.conns[a.class] != nil) {
				return nil, fmt.Sprintf("stale link %d of this boot: link %d is the latest", a.link, now.link)
			}
			if a.link == now.link {
				now.conns[a.class] = in
				now.whole = true
				in.guest = now
				return nil, ""
			}
		}
		for _, c := range now.conns {
			old = append(old, c)
		}
	}
	in.guest = &guest{peer: a.peer, link: a.link, conns: map[class]*inbound{a.class: in}}
	g.byID[a.peer.ID] = in.guest
	return old, ""
}

// exit takes an ended connection out and returns its sibling, if it is still
// open, for the caller to close. It reports the loss of a guest once, and only of
// a whole one that did not say bye.
func (g *guests) exit(in *inbound, bye bool) (sibling *inbound, lost bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := in.guest
	lost = of.whole && !of.ending && !bye
	of.ending = true
	delete(of.conns, in.class)
	for _, c := range of.conns {
		sibling = c
	}
	if len(of.conns) == 0 && g.byID[of.peer.ID] == of {
		delete(g.byID, of.peer.ID)
	}
	return sibling, lost
}
