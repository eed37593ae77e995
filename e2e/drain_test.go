package e2e

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// traffic is clients that ask for one thing after the other, by the gateways in turn.
type traffic struct {
	stop chan struct{}
	wg   sync.WaitGroup

	mu   sync.Mutex
	got  []load.Result
	want []load.Result // of the same requests, unbroken
}

func (m *mesh) traffic(t *testing.T, clients int, requests []load.Request, want []load.Result) *traffic {
	tr := &traffic{stop: make(chan struct{})}
	for k := range clients {
		tr.wg.Go(func() {
			c := clientOf(m.Gateways()[k%len(m.Gateways())])
			defer c.CloseIdle()
			for i := k; ; i++ {
				select {
				case <-tr.stop:
					return
				default:
				}
				r := c.Stream(t.Context(), requests[i%len(requests)], nil)
				tr.mu.Lock()
				tr.got, tr.want = append(tr.got, r), append(tr.want, want[i%len(want)])
				tr.mu.Unlock()
			}
		})
	}
	return tr
}

// served is how many answers have ended.
func (tr *traffic) served() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return len(tr.got)
}

// judge lets the last answers end and demands that all were right.
func (tr *traffic) judge(t *testing.T) {
	t.Helper()
	close(tr.stop)
	tr.wg.Wait()
	judge(t, tr.got, tr.want)
	if len(tr.got) == 0 {
		t.Error("nothing was asked")
	}
}

// TestRollingRestart stops hosts as a service manager does, one after the other, and
// starts each again, while clients come by two gateways: they must not notice. Then a host
// is drained and taken back, and at last the gateway itself is stopped under 20 streams
// (K74).
func TestRollingRestart(t *testing.T) {
	o := eightHosts()
	o.Gateways = 2
	m := start(t, o)
	hosts := []*devmesh.Node{m.Node(1), m.Node(4)}
	if long() {
		hosts = m.Hosts()
	}
	requests := storyRequests(m, 8, 200)
	want := m.unbroken(t, requests)

	t.Run("hosts", func(t *testing.T) {
		tr := m.traffic(t, 8, requests, want)
		var stops []time.Duration
		began := time.Now()
		for _, n := range hosts {
			m.through(t, n, "decode")
			at := time.Now()
			if err := n.Kill(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			<-n.Ended()
			stops = append(stops, time.Since(at))
			m.restart(t, n)
		}
		took := time.Since(began)
		tr.judge(t)
		causes := map[string]int{}
		for _, g := range m.Gateways() {
			events, err := g.Events(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events {
				if e.Type == "failover" {
					causes[e.Cause]++
				}
			}
		}
		if causes["drain"] == 0 {
			t.Errorf("nobody moved: failovers by cause %v", causes)
		}
		t.Logf("%d hosts in %v, stopped in %v to %v; %d answers; sessions moved by cause: %v", len(hosts), took.Round(time.Millisecond),
			slices.Min(stops).Round(time.Millisecond), slices.Max(stops).Round(time.Millisecond), len(tr.got), causes)
	})

	t.Run("drain and undo", func(t *testing.T) {
		needLong(t, "half a minute; the daemon's tests drain too")
		tr := m.traffic(t, 4, requests, want)
		n, control := m.Node(3), m.Gateway(1).Control()
		m.through(t, n, "decode")
		if _, errs, code := kevlard(t, "--control", control, "drain", n.Name()); code != 0 {
			t.Fatalf("drain: exit %d: %s", code, errs)
		}
		eventually(t, readyWithin, func() error {
			s, err := n.Status(t.Context())
			if err != nil {
				return err
			}
			if !s.Draining || len(s.Engines) != 0 || len(s.Stages) != 0 {
				return fmt.Errorf("%s drains: %t, and has engines %+v, stages %+v", n.Name(), s.Draining, s.Engines, s.Stages)
			}
			return nil
		})
		before := tr.served()
		eventually(t, streamWithin, func() error {
			if now := tr.served(); now < before+8 {
				return fmt.Errorf("%d answers without %s", now-before, n.Name())
			}
			return nil
		})
		if _, errs, code := kevlard(t, "--control", control, "drain", "--undo", n.Name()); code != 0 {
			t.Fatalf("drain --undo: exit %d: %s", code, errs)
		}
		m.ready(t)
		m.through(t, n, "decode")
		tr.judge(t)
	})

	t.Run("gateway", func(t *testing.T) {
		short := storyRequests(m, 20, 50) // what is left ends within the time for it, also on a busy machine
		unbroken := m.unbroken(t, short)
		s := m.storm(t.Context(), short)
		s.reach(t, 5)
		n := m.Entry()
		at := time.Now()
		if err := n.Kill(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		judge(t, s.wait(t), unbroken)
		<-n.Ended()
		t.Logf("stopped in %v", time.Since(at).Round(time.Millisecond))
		m.restart(t, n)
	})
}
