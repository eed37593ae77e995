package membership

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// patience only bounds a hang: real time passes slowly on a busy machine.
const patience = time.Minute

// quick is a profile for real time: a death among four is seen in about a second.
func quick(t *testing.T) profile {
	t.Helper()
	p, err := profileNamed("lan")
	if err != nil {
		t.Fatal(err)
	}
	p.probe, p.probeTimeout, p.gossip = 200*time.Millisecond, 80*time.Millisecond, 20*time.Millisecond
	p.mult, p.maxMult = 3, 3
	p.pushPull, p.tcp = time.Second, time.Second
	p.settle = 100 * time.Millisecond
	p.again, p.rejoinMin, p.rejoinMax = 300*time.Millisecond, time.Second, 2*time.Second
	p.retryMin, p.retryMax, p.ask = 100*time.Millisecond, time.Second, 100*time.Millisecond
	return p
}

// loopback starts a node on real sockets of its own address 127.0.77.i; port 0
// takes a free one.
func (w *world) loopback(i, port int, join ...string) *proc {
	w.t.Helper()
	cfg := w.config(i, join...)
	cfg.Bind = fmt.Sprintf("127.0.77.%d:%d", i, port)
	p := &proc{w: w, done: make(chan struct{}), log: &logBuffer{}}
	cfg.Log = p.log.logger()
	var err error
	if p.Ring, err = newRing(cfg, quick(w.t)); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() {
		p.err = p.Run(ctx)
		close(p.done)
	}()
	w.t.Cleanup(p.kill)
	w.procs = append(w.procs, p)
	return p
}

func TestLoopback(t *testing.T) {
	w := &world{t: t}
	first := w.loopback(1, 0)
	port := int(first.cfg.bind.Port())
	seeds := []string{first.Addr(), fmt.Sprintf("127.0.77.2:%d", port), "127.0.77.3"}
	procs := []*proc{first}
	for i := 2; i <= 5; i++ {
		procs = append(procs, w.loopback(i, port, seeds...))
	}
	t.Logf("five joined in %v", w.agree(patience, procs...))
	w.eventually(patience, "round trips are measured", func() bool {
		for _, m := range first.Members() {
			if m.Name != first.cfg.Name && (m.RTT <= 0 || m.RTT > patience) {
				return false
			}
		}
		return true
	})

	for range 3 {
		procs[2].kill()
		procs[2] = w.loopback(3, port, seeds...)
		t.Logf("restart seen by all in %v", w.agree(patience, procs...))
	}

	procs[3].kill()
	rest := without(procs, 3)
	t.Logf("death seen by all in %v", w.agree(patience, rest...))
	if got, want := first.view(StateDead), selves(procs[3]); got != want {
		t.Errorf("dead [%s], want [%s]", got, want)
	}

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := procs[4].Leave(ctx); err != nil {
		t.Fatal(err)
	}
	procs[4].kill()
	w.agree(patience, rest[:3]...)
	for _, p := range rest[:3] {
		if got, want := p.view(StateLeft), selves(procs[4]); got != want {
			t.Errorf("%s shows left [%s], want [%s]", p.cfg.Name, got, want)
		}
	}
	if err := procs[4].err; err != nil {
		t.Errorf("Run after leave: %v", err)
	}

	claimant := w.config(2, seeds...)
	claimant.Bind, claimant.Meta.Peer = "127.0.77.9:0", "peer-other"
	r, err := newRing(claimant, quick(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(ctx); err == nil || !strings.Contains(err.Error(), "held in ring") {
		t.Errorf("Run of a second claimant: %v", err)
	}
}

func TestPortsTaken(t *testing.T) {
	w := &world{t: t}
	a := w.loopback(1, 0)
	cfg := w.config(2)
	cfg.Bind = a.Addr()
	_, err := New(cfg)
	if err == nil || !strings.Contains(err.Error(), "TCP listener") || !strings.Contains(err.Error(), a.cfg.bind.Addr().String()) {
		t.Errorf("TCP port taken: %v", err)
	}
	u, err := net.ListenPacket("udp", "127.0.77.3:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	cfg.Bind = u.LocalAddr().String()
	if _, err = New(cfg); err == nil || !strings.Contains(err.Error(), "UDP listener") {
		t.Errorf("UDP port taken: %v", err)
	}
	cfg.Bind = "127.0.77.3:0"
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.Run(ctx); err != nil {
		t.Errorf("Run to release: %v", err)
	}
	cfg.Bind = r.Addr()
	if r, err = New(cfg); err != nil {
		t.Fatalf("the port is not free after Run: %v", err)
	}
	if err := r.Run(ctx); err != nil {
		t.Error(err)
	}
}

func TestConfigProblemsAreAllNamed(t *testing.T) {
	_, err := New(Config{Name: "a b", Bind: "nowhere", Advertise: "0.0.0.0:1", Secret: []byte("short"), Join: []string{"x:0", ""}})
	for _, s := range []string{`"a b"`, "ring name", "nowhere", "unspecified", "5 bytes, want 32", `"x:0"`, `""`, "role"} {
		if err == nil || !strings.Contains(err.Error(), s) {
			t.Errorf("error does not say %q: %v", s, err)
		}
	}
	if _, err := New(Config{Profile: "fast"}); err == nil || !strings.Contains(err.Error(), "lan or wan") {
		t.Errorf("profile: %v", err)
	}
}

func TestWithPort(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1": "10.0.0.1:7", "10.0.0.1:9": "10.0.0.1:9", "host": "host:7", "host.site:9": "host.site:9",
		"::1": "[::1]:7", "[::1]:9": "[::1]:9", "": "", ":9": "", "host:0": "", "host:x": "", "host:65536": "",
		"a b": "", strings.Repeat("x", maxAddr): "",
	} {
		if got, err := withPort(in, 7); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", in, got, err, want)
		}
	}
}

func TestWANProfile(t *testing.T) {
	for _, name := range []string{"", "lan", "wan"} {
		p, err := profileNamed(name)
		if err != nil {
			t.Fatal(err)
		}
		if p.probe <= 2*p.probeTimeout+p.probeTimeout/2 {
			t.Errorf("%q: probe %v leaves late nacks at timeout %v", name, p.probe, p.probeTimeout)
		}
	}
}
