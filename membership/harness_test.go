package membership

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/membership/memtransport"
)

// world is a ring on the network in memory, inside a synctest bubble: the
// production timers run in virtual time.
type world struct {
	t     *testing.T
	net   *memtransport.Network
	timer func(*profile) // edits the lan profile, if set
	tap   func(b []byte) // sees each packet that a node sends, if set
	boots int
	procs []*proc
}

// proc is one life of a node.
type proc struct {
	*Ring
	w      *world
	cancel context.CancelFunc
	done   chan struct{}
	err    error // after done
	log    *logBuffer
}

// inWorld runs f in a bubble and stops every node after it.
func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		// A bubble begins in 2000, and incarnations with the present.
		time.Sleep(time.Until(seniorSince().Add(24 * time.Hour)))
		w := &world{t: t, net: memtransport.NewNetwork(1)}
		defer func() {
			for _, p := range w.procs {
				p.kill()
			}
			// Timers and streams of memberlist end by themselves; the bubble panics
			// if a goroutine stays.
			time.Sleep(30 * time.Second)
		}()
		f(t, w)
	})
}

func addrOf(i int) string { return fmt.Sprintf("10.0.0.%d:7946", i) }
func nameOf(i int) string { return fmt.Sprintf("node-%02d", i) }

func seedsOf(is ...int) (out []string) {
	for _, i := range is {
		out = append(out, addrOf(i))
	}
	return out
}

// config of node i: name, address and peer ID by number, a new boot each time.
func (w *world) config(i int, join ...string) Config {
	w.boots++
	return Config{
		Name: kevlard.NodeID(nameOf(i)), Ring: "test", Bind: addrOf(i), Join: join,
		Secret: bytes.Repeat([]byte{7}, SecretSize),
		Meta: Meta{
			Peer: fmt.Sprintf("peer-%02d", i), Boot: kevlard.BootID(fmt.Sprintf("boot-%04d", w.boots)),
			Role: RoleHost, ProtoMin: 1, ProtoMax: 2, Mesh: fmt.Sprintf("10.0.0.%d:7947", i), Version: "0.1.0",
		},
	}
}

// start runs a node. Starts are spaced, since memberlist's tickers of nodes made
// at one instant stay in phase.
func (w *world) start(cfg Config) *proc {
	w.t.Helper()
	time.Sleep(37 * time.Millisecond)
	tr, err := w.net.Listen(cfg.Bind)
	if err != nil {
		w.t.Fatal(err)
	}
	p := &proc{w: w, done: make(chan struct{}), log: &logBuffer{}}
	cfg.Transport = &tapped{tr, w}
	cfg.Log = p.log.logger().With("at", cfg.Name)
	lan, err := profileNamed("lan")
	if err != nil {
		w.t.Fatal(err)
	}
	if w.timer != nil {
		w.timer(&lan)
	}
	if p.Ring, err = newRing(cfg, lan); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() {
		p.err = p.Run(ctx)
		close(p.done)
	}()
	w.procs = append(w.procs, p)
	return p
}

// tapped is a transport that somebody on the network listens to.
type tapped struct {
	*memtransport.Transport
	w *world
}

func (t *tapped) WriteTo(b []byte, addr string) (time.Time, error) {
	if t.w.tap != nil {
		t.w.tap(b)
	}
	return t.Transport.WriteTo(b, addr)
}

func (t *tapped) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

// kill ends a node without a goodbye.
func (p *proc) kill() {
	p.cancel()
	<-p.done
}

// view renders the members in a state as "name/boot", space-separated.
func (p *proc) view(s State) string {
	var out []string
	for _, m := range p.Members() {
		if m.State == s {
			out = append(out, string(m.Name)+"/"+string(m.Meta.Boot))
		}
	}
	return strings.Join(out, " ")
}

// selves renders processes as view does.
func selves(procs ...*proc) string {
	var out []string
	for _, p := range procs {
		out = append(out, string(p.cfg.Name)+"/"+string(p.cfg.Meta.Boot))
	}
	return strings.Join(out, " ")
}

// eventually waits for cond in virtual time and returns how long it took.
func (w *world) eventually(limit time.Duration, what string, cond func() bool) time.Duration {
	w.t.Helper()
	start := time.Now()
	for !cond() {
		if time.Since(start) > limit {
			var views []string
			for _, p := range w.procs {
				views = append(views, fmt.Sprintf("%s: alive [%s] dead [%s] left [%s]", p.cfg.Name, p.view(StateAlive), p.view(StateDead), p.view(StateLeft)))
			}
			w.t.Fatalf("not within %v: %s\n%s", limit, what, strings.Join(views, "\n"))
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(start)
}

// agree waits until procs show exactly one another as alive, with their boots.
// They must be given in the order of their names.
func (w *world) agree(limit time.Duration, procs ...*proc) time.Duration {
	w.t.Helper()
	want := selves(procs...)
	return w.eventually(limit, "all show alive "+want, func() bool {
		for _, p := range procs {
			if p.view(StateAlive) != want {
				return false
			}
		}
		return true
	})
}

// ring starts nodes 1..n with the first three as seeds.
func (w *world) ring(n int) []*proc {
	w.t.Helper()
	var procs []*proc
	for i := 1; i <= n; i++ {
		procs = append(procs, w.start(w.config(i, seedsOf(1, 2, 3)...)))
	}
	w.agree(5*time.Second, procs...)
	return procs
}

func without(procs []*proc, i int) []*proc {
	return append(append([]*proc(nil), procs[:i]...), procs[i+1:]...)
}

// logBuffer keeps what a node logged.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if os.Getenv("RING_LOG") != "" {
		os.Stderr.Write(p)
	}
	return l.b.Write(p)
}

func (l *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// count returns how many lines contain all of parts.
func (l *logBuffer) count(parts ...string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
line:
	for line := range strings.Lines(l.b.String()) {
		for _, p := range parts {
			if !strings.Contains(line, p) {
				continue line
			}
		}
		n++
	}
	return n
}
