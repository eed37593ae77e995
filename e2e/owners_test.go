package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/kevlard/kevlard/client"
	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// TestOwnersDie kills the node that a client is connected to, which owns the session, in
// the middle of the stream, or freezes it and wakes it later. The client goes on at some
// other node and gets the whole answer, once.
func TestOwnersDie(t *testing.T) {
	kills := 6
	if long() {
		kills = 100
	}
	m := start(t, devmesh.Options{Nodes: 2, Stages: 2, Gateways: 3})
	bodies := resumable(m)
	want := make([]answer, len(bodies))
	for i, body := range bodies {
		body["stream"] = true
		if err := client.New(m.Gateway(1).APIURL()).Stream(t.Context(), "/v1/completions", body, want[i].add); err != nil {
			t.Fatal(err)
		}
	}
	var gaps []time.Duration
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range kills {
		owner := m.Gateway(1 + i%3)
		var others []*devmesh.Node
		for k := range 3 {
			if n := m.Gateway(1 + k); n != owner {
				others = append(others, n)
			}
		}
		body := bodies[i%len(bodies)]
		c := &comer{t: t, body: body, stopAt: 2 + rng.IntN(25)}
		c.read(owner)
		sig := syscall.SIGKILL
		if i%2 == 1 {
			sig = syscall.SIGSTOP
		}
		if err := owner.Kill(sig); err != nil {
			t.Fatal(err)
		}
		c.drop()
		c.stopAt = -1
		back := time.Now()
		for end := back.Add(streamWithin); !c.done; {
			c.read(others[rng.IntN(len(others))])
			if time.Now().After(end) {
				t.Fatalf("kill %d: the answer does not go on: %s", i, c.why)
			}
		}
		gaps = append(gaps, c.first.Sub(back))
		if !c.got.same(want[i%len(want)]) {
			t.Errorf("kill %d (%v): got\n%+v\nwant\n%+v", i, sig, c.got, want[i%len(want)])
		}
		if sig == syscall.SIGSTOP {
			if err := owner.Kill(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			m.ready(t)
		} else {
			m.restart(t, owner)
		}
	}
	t.Logf("%d owners died; from coming back to the next event: p50 %v, p99 %v", kills,
		load.Quantile(gaps, 0.5).Round(time.Millisecond), load.Quantile(gaps, 0.99).Round(time.Millisecond))
}

// comer is a client that comes back.
type comer struct {
	t      *testing.T
	body   map[string]any
	stopAt int // events after which it stops to read; -1: never
	got    answer
	last   string // id of the last event
	first  time.Time
	done   bool
	why    string // it could not go on
	resp   *http.Response
}

// read asks a node and takes what it sends until it stops.
func (c *comer) read(n *devmesh.Node) {
	c.resp = posted(c.t, n, c.body, c.last)
	if c.resp.StatusCode != http.StatusOK {
		var e struct {
			Error struct{ Code string }
		}
		_ = json.NewDecoder(c.resp.Body).Decode(&e) // without a code it is not one of those below
		c.drop()
		switch e.Error.Code {
		case "session_busy", "session_not_found", "session_no_quorum", "draining", "no_route", "owner_lost", "capacity":
			c.why = fmt.Sprintf("%s: %s", n.Name(), e.Error.Code)
			time.Sleep(20 * time.Millisecond) // the client's back-off
			return
		}
		c.t.Fatalf("%s: status %d, code %q", n.Name(), c.resp.StatusCode, e.Error.Code)
	}
	seen := 0
	for ev := range readEvents(c.resp.Body) {
		if ev.data == "[DONE]" {
			c.done = true
			break
		}
		var e struct{ Error *struct{ Code string } }
		if err := json.Unmarshal([]byte(ev.data), &e); err != nil {
			c.t.Fatal(err)
		}
		if e.Error != nil {
			c.why = e.Error.Code
			break
		}
		if err := c.got.add(json.RawMessage(ev.data)); err != nil {
			c.t.Fatal(err)
		}
		if c.last = ev.id; c.stopAt < 0 && c.first.IsZero() {
			c.first = time.Now()
		}
		if seen++; seen == c.stopAt {
			return
		}
	}
	c.drop()
}

// drop closes the connection.
func (c *comer) drop() { c.resp.Body.Close() }
