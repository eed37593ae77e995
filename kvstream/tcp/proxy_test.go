package tcp

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy forwards TCP to one address until it is cut or frozen.
type proxy struct {
	listener net.Listener
	to       string
	work     sync.WaitGroup
	accepted atomic.Int64

	mu     sync.Mutex
	conns  []*net.TCPConn
	ended  bool
	change func(b []byte) // of bytes on their way to the listener; nil: none
	frozen chan struct{}  // closed when nothing is taken from the dialler any more
}

func startProxy(t testing.TB, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, to: to, frozen: make(chan struct{})}
	p.work.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		p.ended = true
		p.mu.Unlock()
		p.cut()
		p.work.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.accepted.Add(1)
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			in.Close()
			continue
		}
		a, b := in.(*net.TCPConn), out.(*net.TCPConn)
		p.mu.Lock()
		p.conns = append(p.conns, a, b)
		ended := p.ended
		p.mu.Unlock()
		if ended {
			p.cut()
			return
		}
		p.work.Go(func() { p.pump(a, b, true) })
		p.work.Go(func() { p.pump(b, a, false) })
	}
}

// pump forwards one direction. Frozen, it takes no more from the dialler, so that one
// sees a healthy connection whose window is full.
func (p *proxy) pump(from, to *net.TCPConn, forth bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if forth {
			p.mu.Lock()
			if p.change != nil {
				p.change(buf[:n])
			}
			p.mu.Unlock()
		}
		select {
		case <-p.frozen:
			return
		default:
		}
		if _, werr := to.Write(buf[:n]); werr != nil {
			err = werr
		}
		if err == io.EOF {
			to.CloseWrite()
			return
		}
		if err != nil {
			reset(to)
			reset(from)
			return
		}
	}
}

func reset(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

// cut resets all connections; new ones are forwarded.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		reset(c)
	}
	p.conns = nil
}

func (p *proxy) freeze() { close(p.frozen) }
