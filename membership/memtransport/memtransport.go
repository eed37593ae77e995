// Package memtransport is a network in memory for memberlist rings of one
// process: packets with a bounded inbox, streams over net.Pipe, and switches for
// loss, jitter, one-way blackholes, partitions and crashes. It uses no sockets and no
// goroutines of its own (timers, with jitter), so it runs inside a testing/synctest bubble.
package memtransport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// inboxSize bounds the packets waiting at one transport; as with UDP, further
// ones are dropped.
const inboxSize = 1024

// Network connects transports. Its methods may be called at any time from any
// goroutine.
type Network struct {
	mu     sync.RWMutex
	hosts  map[string]*Transport
	cut    map[[2]string]bool // from, to: nothing passes
	groups map[string]int     // partition; hosts not named are in group 0
	loss   float64
	jitter time.Duration
	udpOff map[string]bool

	dice sync.Mutex
	rng  *rand.Rand

	packets, packetBytes, streams, streamBytes atomic.Uint64
}

// Traffic is what all transports of a network have sent since it was made, lost
// or not: memberlist's bytes, without the headers of IP, UDP and TCP.
type Traffic struct {
	Packets, PacketBytes uint64
	Streams, StreamBytes uint64 // dialled with success; bytes both ways
}

// Traffic returns what was sent so far.
func (n *Network) Traffic() Traffic {
	return Traffic{
		Packets: n.packets.Load(), PacketBytes: n.packetBytes.Load(),
		Streams: n.streams.Load(), StreamBytes: n.streamBytes.Load(),
	}
}

// NewNetwork returns a network without faults; seed drives packet loss.
func NewNetwork(seed uint64) *Network {
	return &Network{
		hosts: make(map[string]*Transport), cut: make(map[[2]string]bool), udpOff: make(map[string]bool),
		rng: rand.New(rand.NewPCG(seed, seed)),
	}
}

// Listen attaches a transport at addr (ip:port).
func (n *Network) Listen(addr string) (*Transport, error) {
	a, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, fmt.Errorf("memtransport address %q: %w", addr, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts[addr] != nil {
		return nil, fmt.Errorf("memtransport address %s: already in use", addr)
	}
	t := &Transport{
		net: n, addr: a, name: a.String(),
		packets: make(chan *memberlist.Packet, inboxSize),
		streams: make(chan net.Conn),
		closed:  make(chan struct{}),
	}
	n.hosts[addr] = t
	return t, nil
}

// Blackhole drops (or, with off, passes again) everything from and to addr, as a
// host without power: dials time out. Streams that are open already go on.
func (n *Network) Blackhole(addr string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.setCut(addr, "", on)
	n.setCut("", addr, on)
}

// setCut is called with mu held.
func (n *Network) setCut(from, to string, on bool) {
	if on {
		n.cut[[2]string{from, to}] = true
	} else {
		delete(n.cut, [2]string{from, to})
	}
}

// Cut drops (or passes again) everything from one address to another, one way.
func (n *Network) Cut(from, to string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.setCut(from, to, on)
}

// BlockPackets drops packets from and to addr while streams pass, as a firewall
// that knows only TCP.
func (n *Network) BlockPackets(addr string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if on {
		n.udpOff[addr] = true
	} else {
		delete(n.udpOff, addr)
	}
}

// Partition lets only addresses of the same group reach one another; addresses
// in none form a group of their own. No groups heals.
func (n *Network) Partition(groups ...[]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.groups = make(map[string]int)
	for i, g := range groups {
		for _, a := range g {
			n.groups[a] = i + 1
		}
	}
}

// Loss drops packets with probability p.
func (n *Network) Loss(p float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.loss = p
}

// Jitter delays each packet, each dial and each write to a stream by up to most, at random:
// packets overtake one another, bytes of a stream do not.
func (n *Network) Jitter(most time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.jitter = most
}

// delay draws one.
func (n *Network) delay() time.Duration {
	n.mu.RLock()
	most := n.jitter
	n.mu.RUnlock()
	if most <= 0 {
		return 0
	}
	n.dice.Lock()
	defer n.dice.Unlock()
	return time.Duration(n.rng.Int64N(int64(most)))
}

// route returns the transport at to. It is nil if nobody listens there, and ok
// is false if the network swallows what is sent.
func (n *Network) route(from, to string, packet bool) (t *Transport, ok bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if len(n.cut) > 0 {
		if n.cut[[2]string{from, ""}] || n.cut[[2]string{"", to}] || n.cut[[2]string{from, to}] {
			return nil, false
		}
		if !packet && n.cut[[2]string{to, from}] {
			return nil, false // a handshake needs both ways
		}
	}
	if len(n.groups) > 0 && n.groups[from] != n.groups[to] {
		return nil, false
	}
	if packet && (len(n.udpOff) > 0 && (n.udpOff[from] || n.udpOff[to]) || n.lost()) {
		return nil, false
	}
	return n.hosts[to], true
}

// lost says whether this packet is. It is called with mu held.
func (n *Network) lost() bool {
	if n.loss == 0 {
		return false
	}
	n.dice.Lock()
	defer n.dice.Unlock()
	return n.rng.Float64() < n.loss
}

// Transport is one host's attachment, a memberlist.NodeAwareTransport.
type Transport struct {
	net     *Network
	addr    netip.AddrPort
	name    string // addr's
	packets chan *memberlist.Packet
	streams chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

var _ memberlist.NodeAwareTransport = (*Transport)(nil)

// FinalAdvertiseAddr implements memberlist.Transport.
func (t *Transport) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	if ip == "" {
		return t.addr.Addr().AsSlice(), int(t.addr.Port()), nil
	}
	a, err := netip.ParseAddr(ip)
	if err != nil {
		return nil, 0, fmt.Errorf("advertise address %q: %w", ip, err)
	}
	return a.Unmap().AsSlice(), port, nil
}

// WriteTo implements memberlist.Transport. A lost packet is no error.
func (t *Transport) WriteTo(b []byte, addr string) (time.Time, error) {
	now := time.Now()
	if t.isClosed() {
		return now, net.ErrClosed
	}
	t.net.packets.Add(1)
	t.net.packetBytes.Add(uint64(len(b)))
	to, ok := t.net.route(t.name, addr, true)
	if !ok || to == nil || to.isClosed() {
		return now, nil
	}
	p := &memberlist.Packet{Buf: append([]byte(nil), b...), From: net.UDPAddrFromAddrPort(t.addr), Timestamp: now} // b may be used again
	deliver := func() {
		select {
		case to.packets <- p:
		default:
		}
	}
	if d := t.net.delay(); d > 0 {
		time.AfterFunc(d, deliver)
	} else {
		deliver()
	}
	return now, nil
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (t *Transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

// PacketCh implements memberlist.Transport.
func (t *Transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// DialTimeout implements memberlist.Transport. It is refused at once where
// nobody listens and times out where the network swallows.
func (t *Transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	to, ok := t.net.route(t.name, addr, false)
	failed := func(err error) error {
		dst := net.Addr(nil)
		if a, perr := netip.ParseAddrPort(addr); perr == nil {
			dst = net.TCPAddrFromAddrPort(a)
		}
		return &net.OpError{Op: "dial", Net: "tcp", Addr: dst, Err: err}
	}
	if ok && (to == nil || to.isClosed()) {
		return nil, failed(errors.New("connection refused"))
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	if !ok {
		select {
		case <-timer.C:
			return nil, failed(os.ErrDeadlineExceeded)
		case <-t.closed:
			return nil, failed(net.ErrClosed)
		}
	}
	time.Sleep(t.net.delay())
	near, far := net.Pipe()
	select {
	case to.streams <- conn{far, to.addr, t.addr, t.net}:
		t.net.streams.Add(1)
		return conn{near, t.addr, to.addr, t.net}, nil
	case <-timer.C:
		return nil, failed(os.ErrDeadlineExceeded)
	case <-t.closed:
		return nil, failed(net.ErrClosed)
	case <-to.closed:
		return nil, failed(errors.New("connection refused"))
	}
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *Transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(a.Addr, timeout)
}

// StreamCh implements memberlist.Transport.
func (t *Transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown detaches the transport, as the death of its process: its address is
// free at once.
func (t *Transport) Shutdown() error {
	t.once.Do(func() {
		close(t.closed)
		t.net.mu.Lock()
		defer t.net.mu.Unlock()
		if t.net.hosts[t.name] == t {
			delete(t.net.hosts, t.name)
		}
	})
	return nil
}

func (t *Transport) isClosed() bool {
	select {
	case <-t.closed:
		return true
	default:
		return false
	}
}

// conn is one end of a pipe that knows its addresses.
type conn struct {
	net.Conn
	local, remote netip.AddrPort
	net           *Network
}

// Write implements net.Conn.
func (c conn) Write(b []byte) (int, error) {
	time.Sleep(c.net.delay())
	n, err := c.Conn.Write(b)
	c.net.streamBytes.Add(uint64(n))
	return n, err
}

// LocalAddr implements net.Conn.
func (c conn) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(c.local) }

// RemoteAddr implements net.Conn.
func (c conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }
