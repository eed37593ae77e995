package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/sec"
	"github.com/libp2p/go-libp2p/core/transport"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	"github.com/libp2p/go-libp2p/p2p/net/upgrader"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	goyamux "github.com/libp2p/go-yamux/v5"
	ma "github.com/multiformats/go-multiaddr"
	manet "github.com/multiformats/go-multiaddr/net"
)

// muxer returns yamux with our settings; limits.go gives the reasons.
func muxer() *yamux.Transport {
	c := goyamux.DefaultConfig()
	c.AcceptBacklog = maxCalls
	c.KeepAliveInterval = keepAliveEvery
	c.ConnectionWriteTimeout = writeTimeout
	c.MeasureRTTInterval = rttEvery
	c.MaxIncomingStreams = maxCalls + 1 // and the main stream
	c.InitialStreamWindowSize = streamWindow
	c.MaxStreamWindowSize = streamWindow
	c.MaxMessageSize = coalesceBytes
	c.ReadBufSize = 0 // TLS has already buffered
	c.LogOutput = io.Discard
	return (*yamux.Transport)(c)
}

// newTransport returns the dialler and the upgrader for accepted connections.
func newTransport(key crypto.PrivKey, g *gate) (*tcp.TcpTransport, transport.Upgrader, error) {
	muxers := []upgrader.StreamMuxer{{ID: yamux.ID, Muxer: muxer()}}
	security, err := libp2ptls.New(libp2ptls.ID, key, muxers)
	if err != nil {
		return nil, nil, fmt.Errorf("make TLS identity: %w", err)
	}
	up, err := upgrader.New([]sec.SecureTransport{security}, muxers, nil, g, nil, upgrader.WithAcceptTimeout(handshakeTimeout))
	if err != nil {
		return nil, nil, fmt.Errorf("make upgrader: %w", err)
	}
	// Port reuse would let a second daemon listen on our port unnoticed.
	dialler, err := tcp.NewTCPTransport(up, g, nil, tcp.DisableReuseport(), tcp.WithConnectionTimeout(handshakeTimeout))
	if err != nil {
		return nil, nil, fmt.Errorf("make TCP transport: %w", err)
	}
	return dialler, up, nil
}

// resolve turns host:port into a multiaddr; the TCP transport knows only IPs.
func resolve(ctx context.Context, addr string) (ma.Multiaddr, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("mesh address %q: want host:port: %w", addr, err)
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return nil, fmt.Errorf("mesh address %q: %w", addr, err)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("mesh address %q: %w", addr, err)
	}
	ip := ips[0].Unmap()
	return manet.FromNetAddr(&net.TCPAddr{IP: ip.AsSlice(), Port: number, Zone: ip.Zone()})
}

// session returns the yamux session under an upgraded connection.
func session(c transport.CapableConn) *goyamux.Session {
	var s *goyamux.Session
	if !c.As(&s) {
		panic(fmt.Sprintf("mesh: connection %T is not on yamux", c))
	}
	return s
}

// gate counts what peers hold before they proved themselves. libp2p asks it as a
// resource manager.
type gate struct {
	network.NullResourceManager

	mu         sync.Mutex
	unadmitted int
	turnedAway uint64
}

var (
	errUnadmitted = errors.New("too many connections wait for admission")
	errStreams    = errors.New("a second stream before admission or on a data connection")
)

// OpenConnection gives an inbound connection one of maxUnadmitted places.
func (g *gate) OpenConnection(dir network.Direction, _ bool, _ ma.Multiaddr) (network.ConnManagementScope, error) {
	p := &place{gate: g, held: dir == network.DirInbound, opened: time.Now(), streams: 1}
	if !p.held {
		return p, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.unadmitted >= maxUnadmitted {
		g.turnedAway++
		return nil, errUnadmitted
	}
	g.unadmitted++
	return p, nil
}

// place is the scope of one connection: one stream, until admitted to more.
type place struct {
	network.NullScope

	gate   *gate
	opened time.Time

	mu      sync.Mutex
	held    bool // counted in gate.unadmitted
	streams int  // that may still be opened; below 0 without bound
}

// PeerScope makes yamux ask this place before each stream.
func (p *place) PeerScope() network.PeerScope { return p }

// BeginSpan is called for each new stream. Its error closes the connection.
func (p *place) BeginSpan() (network.ResourceScopeSpan, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams == 0 {
		return nil, errStreams
	}
	if p.streams > 0 {
		p.streams--
	}
	return &network.NullScope{}, nil
}

// admit frees the place for another newcomer. A control connection may now hold
// as many streams as yamux allows.
func (p *place) admit(c class) {
	p.leave()
	p.mu.Lock()
	defer p.mu.Unlock()
	if c == classControl {
		p.streams = -1
	}
}

// Done is called when the connection closes, by libp2p more than once.
func (p *place) Done() { p.leave() }

func (p *place) leave() {
	p.mu.Lock()
	held := p.held
	p.held = false
	p.mu.Unlock()
	if held {
		p.gate.mu.Lock()
		p.gate.unadmitted--
		p.gate.mu.Unlock()
	}
}

// placeOf returns the place of a connection that the gate let through.
func placeOf(c transport.CapableConn) *place {
	p, ok := c.Scope().(*place)
	if !ok {
		panic(fmt.Sprintf("mesh: connection has scope %T, want a place of the gate", c.Scope()))
	}
	return p
}
