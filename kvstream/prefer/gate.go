package prefer

import (
	"encoding/binary"
	"sync"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover"
)

// MaxHeader is the most bytes of a header, less than one mover takes.
const MaxHeader = mover.MaxHeader - tagBytes

const tagMagic = "\xffKVP"

// tag says which change of mover a piece comes after. Zero: none.
type tag struct{ life, generation uint64 }

func (t tag) append(b []byte) []byte {
	b = append(b, tagMagic...)
	b = binary.BigEndian.AppendUint64(b, t.life)
	return binary.BigEndian.AppendUint64(b, t.generation)
}

// split cuts the tag off a header.
func split(header []byte) (tag, []byte) {
	if len(header) < tagBytes || string(header[:4]) != tagMagic {
		return tag{}, header
	}
	return tag{binary.BigEndian.Uint64(header[4:]), binary.BigEndian.Uint64(header[12:])}, header[tagBytes:]
}

// Gate is the Handler of all movers of a node: it hands pieces on in the order of their
// generations. A node with one mover has it too, if its peers may have two.
type Gate struct {
	handler mover.Handler

	mu    sync.Mutex
	peers map[kevlard.NodeID]*arrivals
}

var _ mover.Handler = (*Gate)(nil)

// arrivals is what came from a peer last.
type arrivals struct {
	mu   sync.RWMutex // held for reading while a handler works on a piece
	last tag
}

// NewGate returns the gate before a handler.
func NewGate(h mover.Handler) *Gate {
	return &Gate{handler: h, peers: map[kevlard.NodeID]*arrivals{}}
}

// peer returns a peer's arrivals. Who is heard of for the first time begins anew, so
// that forgetting does no harm but to pieces under way.
func (g *Gate) peer(n kevlard.NodeID) *arrivals {
	g.mu.Lock()
	defer g.mu.Unlock()
	a, ok := g.peers[n]
	if !ok {
		if len(g.peers) >= maxPeers {
			clear(g.peers)
		}
		a = &arrivals{}
		g.peers[n] = a
	}
	return a
}

// enter waits until handlers of earlier generations have ended, and reports whether a
// piece is of the last; then leave must follow.
func (a *arrivals) enter(t tag) bool {
	for {
		a.mu.RLock()
		if a.last == t {
			return true
		}
		late := a.last.life == t.life && t.generation < a.last.generation
		a.mu.RUnlock()
		if late {
			return false
		}
		a.mu.Lock()
		if a.last.life != t.life || t.generation > a.last.generation {
			a.last = t
		}
		a.mu.Unlock()
	}
}

func (a *arrivals) leave() { a.mu.RUnlock() }

// Buffer implements mover.Handler.
func (g *Gate) Buffer(from kevlard.NodeID, header []byte, n int) []byte {
	t, rest := split(header)
	a := g.peer(from)
	if !a.enter(t) {
		return nil
	}
	defer a.leave()
	return g.handler.Buffer(from, rest, n)
}

// Received implements mover.Handler.
func (g *Gate) Received(from kevlard.NodeID, header, body []byte) {
	t, rest := split(header)
	a := g.peer(from)
	if !a.enter(t) {
		if body != nil {
			g.handler.Aborted(from, rest, body)
		}
		return
	}
	defer a.leave()
	g.handler.Received(from, rest, body)
}

// Aborted implements mover.Handler.
func (g *Gate) Aborted(from kevlard.NodeID, header, body []byte) {
	_, rest := split(header)
	g.handler.Aborted(from, rest, body)
}

// Lost implements mover.Handler.
func (g *Gate) Lost(to kevlard.NodeID, err error) { g.handler.Lost(to, err) }
