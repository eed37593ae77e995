package mesh

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/transport"
	goyamux "github.com/libp2p/go-yamux/v5"
	"golang.org/x/sync/errgroup"
)

// outbound is one dialled and admitted connection.
type outbound struct {
	class   class
	conn    transport.CapableConn
	session *goyamux.Session
	stream  network.MuxedStream
	queue   *queue
}

// pair is a link's two connections. The first of them to break ends both.
type pair struct {
	peer    Peer
	addr    Address // as dialled
	control *outbound
	data    *outbound
	calls   chan struct{} // capacity maxCalls: one token per call in flight
	lost    chan error    // why a connection ended; capacity for all four goroutines
	ended   sync.WaitGroup

	// What the peer's own connections tell; capacity 1, the first news counts.
	guestLost chan error // they broke
	replaced  chan error // they come from another boot
}

// tell sends news to the link that holds the pair and never blocks.
func (p *pair) tell(to chan error, news error) {
	select {
	case to <- news:
	default: // told already
	}
}

// dialPair dials both connections at once and requires that they prove the same
// peer and boot.
func (m *Mesh) dialPair(ctx context.Context, a Address, number uint64) (*pair, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	p := &pair{
		addr:    a,
		control: &outbound{class: classControl, queue: newQueue(controlFrames, controlBytes)},
		data:    &outbound{class: classData, queue: newQueue(dataFrames, dataBytes)},
		calls:   make(chan struct{}, maxCalls),
		lost:    make(chan error, 4),

		guestLost: make(chan error, 1),
		replaced:  make(chan error, 1),
	}
	var peers [2]Peer
	both, ctx := errgroup.WithContext(ctx)
	for i, o := range []*outbound{p.control, p.data} {
		both.Go(func() (err error) {
			peers[i], err = m.dial(ctx, a, o, number)
			return err
		})
	}
	err := both.Wait()
	if err == nil && peers[0] != peers[1] {
		err = fmt.Errorf("dial node %s at %s: it restarted meanwhile (boots %s and %s)", a.Node, a.Addr, peers[0].Boot, peers[1].Boot)
	}
	if err != nil {
		for _, o := range []*outbound{p.control, p.data} {
			if o.conn != nil {
				_ = o.conn.Close() // the error that matters is already known
			}
		}
		return nil, err
	}
	p.peer = peers[0]
	for _, o := range []*outbound{p.control, p.data} {
		p.ended.Go(func() { p.write(o) })
		p.ended.Go(func() { p.watch(o) })
	}
	return p, nil
}

// dial fills o with an admitted connection.
func (m *Mesh) dial(ctx context.Context, a Address, o *outbound, number uint64) (Peer, error) {
	id, err := peer.Decode(a.ID)
	if err != nil {
		return Peer{}, fmt.Errorf("dial node %s: peer ID %q: %w", a.Node, a.ID, err)
	}
	to, err := resolve(ctx, a.Addr)
	if err != nil {
		return Peer{}, fmt.Errorf("dial node %s: %w", a.Node, err)
	}
	if o.conn, err = m.dialler.Dial(ctx, to, id); err != nil {
		return Peer{}, fmt.Errorf("dial node %s at %s: %w", a.Node, a.Addr, err)
	}
	o.session = session(o.conn)
	stop := context.AfterFunc(ctx, func() { o.conn.Close() }) // ends the admission below
	defer stop()
	if o.stream, err = o.conn.OpenStream(ctx); err != nil {
		return Peer{}, fmt.Errorf("open main stream to node %s at %s: %w", a.Node, a.Addr, err)
	}
	proved, err := m.admitter.dial(o.stream, id, o.class, number)
	if err == nil && proved.Node != a.Node {
		err = refuse(o.stream, string(proved.Node), fmt.Sprintf("name mismatch: dialled node %q, met node %q", a.Node, proved.Node))
	}
	if err != nil {
		if refused := (*RefusedError)(nil); errors.As(err, &refused) && refused.ByUs {
			part(o.stream)
		}
		return Peer{}, fmt.Errorf("admission at node %s at %s, %s connection: %w", a.Node, a.Addr, o.class, err)
	}
	placeOf(o.conn).admit(o.class)
	return proved, nil
}

// write is a connection's writer.
func (p *pair) write(o *outbound) {
	if err := o.queue.drain(o.stream); err != nil {
		p.lost <- fmt.Errorf("write to %s connection: %w", o.class, err)
	}
}

// watch notices the end of a connection as soon as TCP does: yamux always has a
// read pending. The acceptor has no reason to open streams.
func (p *pair) watch(o *outbound) {
	s, err := o.session.AcceptStream()
	if err == nil {
		err = errors.Join(errors.New("the acceptor opened a stream"), s.Reset(), o.conn.Close())
	}
	p.lost <- fmt.Errorf("%s connection broke: %w", o.class, err)
}

// matches reports whether the pair leads where a says. No boot means any.
func (p *pair) matches(a Address) bool {
	return a.ID == p.addr.ID && a.Addr == p.addr.Addr && (a.Boot == "" || a.Boot == p.addr.Boot || a.Boot == p.peer.Boot)
}

// ping asks both connections for a sign of life; it takes at most writeTimeout
// for each way.
func (p *pair) ping() error {
	for _, o := range []*outbound{p.control, p.data} {
		if _, err := o.session.Ping(); err != nil {
			return fmt.Errorf("ping on %s connection: %w", o.class, err)
		}
	}
	return nil
}

// close ends both connections and returns when their goroutines have ended. A
// polite close says bye first, so that the peer does not count it as a loss.
func (p *pair) close(polite bool) {
	var bye []byte
	if polite {
		bye = make([]byte, prefixLen)
		bye[0] = byte(kindBye)
	}
	for _, o := range []*outbound{p.control, p.data} {
		o.queue.finish(bye)
	}
	if polite {
		limit := time.NewTimer(partingTimeout)
		defer limit.Stop()
		for _, o := range []*outbound{p.control, p.data} {
			select { // the acceptor closes on bye
			case <-o.session.CloseChan():
			case <-limit.C:
				limit.Reset(0)
			}
		}
	}
	for _, o := range []*outbound{p.control, p.data} {
		// The connection is of no use any more, however closing it went.
		_ = o.conn.Close()
	}
	p.ended.Wait()
}
