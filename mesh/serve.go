package mesh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/transport"
)

// serve admits one accepted connection and reads it until it ends.
func (m *Mesh) serve(ctx context.Context, conn transport.CapableConn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shut := func() {
		// Whoever uses the connection sees its end; how closing went tells no more.
		_ = conn.Close()
	}
	defer shut()
	stop := context.AfterFunc(ctx, shut)
	defer stop()
	limit := time.AfterFunc(time.Until(placeOf(conn).opened.Add(handshakeTimeout)), shut)
	defer limit.Stop()

	stream, err := conn.AcceptStream()
	if err != nil {
		m.log.Debug("mesh connection ended before admission", "addr", remoteAddr(conn), "err", err)
		return
	}
	a, in, err := m.letIn(conn, stream)
	if err != nil {
		if refused := (*RefusedError)(nil); errors.As(err, &refused) {
			m.reportRefusal(refused.Node, remoteAddr(conn), err)
			if refused.ByUs {
				part(stream)
			}
		} else {
			m.log.Debug("mesh admission failed", "addr", remoteAddr(conn), "peer", conn.RemotePeer(), "err", err)
		}
		if in != nil {
			m.leave(in, false, err)
		}
		return
	}
	limit.Stop()
	var calls sync.WaitGroup
	if a.class == classControl {
		calls.Go(func() { m.answerAll(ctx, a.peer, conn) })
	}
	bye, err := m.read(a, conn, stream)
	m.leave(in, bye, err)
	cancel()
	shut()
	calls.Wait()
}

// letIn admits the connection and sends our proof. A non-nil inbound has entered
// the guests, even if sending failed.
func (m *Mesh) letIn(conn transport.CapableConn, stream network.MuxedStream) (arrival, *inbound, error) {
	a, err := m.admitter.accept(stream, conn.RemotePeer())
	if err != nil {
		return arrival{}, nil, err
	}
	if why := m.binding(a.peer); why != "" {
		return arrival{}, nil, refuse(stream, string(a.peer.Node), why)
	}
	in := &inbound{class: a.class, conn: conn, done: make(chan struct{})}
	if why := m.guests.enter(a, in); why != "" {
		if in.guest == nil {
			in = nil
		}
		return arrival{}, in, refuse(stream, string(a.peer.Node), why)
	}
	placeOf(conn).admit(a.class)
	if err := send(stream, kindProof, a.reply); err != nil {
		return arrival{}, in, err
	}
	m.arrived(a.peer)
	return a, in, nil
}

// binding says why a proved name cannot be that of this peer ID, or "".
func (m *Mesh) binding(p Peer) string {
	l, err := m.link(p.Node)
	if err != nil {
		return "" // not of our set; the ring may know it before we do
	}
	if id := l.address().ID; id != p.ID {
		return fmt.Sprintf("name mismatch: node %q is bound to peer %s, not to %s", p.Node, id, p.ID)
	}
	return ""
}

// leave takes a connection whose reader has ended out of the guests.
func (m *Mesh) leave(in *inbound, bye bool, err error) {
	close(in.done)
	sibling, lost := m.guests.exit(in, bye)
	if lost {
		m.guestLost(in.guest.peer, fmt.Errorf("%s connection from the peer broke: %w", in.class, err))
	}
	if sibling != nil {
		_ = sibling.conn.Close() // its reader reports nothing any more
	}
}

// read hands what arrives to the handler until the connection ends. bye says that
// it ended on purpose.
func (m *Mesh) read(a arrival, conn transport.CapableConn, stream network.MuxedStream) (bye bool, err error) {
	from := bufio.NewReaderSize(stream, readBuffer)
	for {
		f, err := readFrame(from, a.class.carries())
		if err != nil {
			return false, err
		}
		switch f.kind {
		case kindControl:
			m.cfg.Handler.Control(a.peer, f.body)
		case kindData:
			m.cfg.Handler.Data(a.peer, f.header, f.body)
		case kindRefuse: // the dialler did not like our proof
			err := &RefusedError{Node: string(a.peer.Node), Reason: printable(f.body)}
			m.reportRefusal(err.Node, remoteAddr(conn), err)
			return true, err
		case kindBye:
			return true, nil
		}
	}
}

// arrived tells the link that its peer is alive under some boot.
func (m *Mesh) arrived(p Peer) {
	l, err := m.link(p.Node)
	if err != nil {
		return // not of our set
	}
	pair, err := l.connected()
	if err != nil {
		l.stir()
		return
	}
	if pair.peer != p {
		pair.tell(pair.replaced, fmt.Errorf("the peer restarted, its boot is now %s", p.Boot))
	}
}

// guestLost tells the link that its peer's own connections broke.
func (m *Mesh) guestLost(p Peer, why error) {
	l, err := m.link(p.Node)
	if err != nil {
		return // not of our set
	}
	if pair, err := l.connected(); err == nil && pair.peer == p {
		pair.tell(pair.guestLost, why)
	}
}
