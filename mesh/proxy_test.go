package mesh

import (
	"io"
	"net"
	"sync"
	"testing"
)

// proxy forwards TCP to one address until it is cut or frozen.
type proxy struct {
	listener net.Listener
	to       string
	work     sync.WaitGroup

	mu     sync.Mutex
	conns  []*net.TCPConn
	frozen chan struct{} // closed when nothing is forwarded any more
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
		p.cut()
		p.work.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			in.Close()
			continue
		}
		a, b := in.(*net.TCPConn), out.(*net.TCPConn)
		p.mu.Lock()
		p.conns = append(p.conns, a, b)
		p.mu.Unlock()
		p.work.Go(func() { p.pump(a, b) })
		p.work.Go(func() { p.pump(b, a) })
	}
}

// pump forwards one direction. Frozen, it reads on and forwards nothing, so the
// sender's kernel sees a healthy connection.
func (p *proxy) pump(from, to *net.TCPConn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		select {
		case <-p.frozen:
		default:
			if _, werr := to.Write(buf[:n]); werr != nil {
				err = werr
			}
			if err != nil {
				to.Close()
				from.Close()
				return
			}
		}
		if err != nil {
			io.Copy(io.Discard, from)
			return
		}
	}
}

// cut resets all connections; new ones are forwarded.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.SetLinger(0)
		c.Close()
	}
	p.conns = nil
}

func (p *proxy) freeze() { close(p.frozen) }

func (p *proxy) at(n *testNode) Address {
	a := n.at()
	a.Addr = p.listener.Addr().String()
	return a
}
