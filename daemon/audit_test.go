package daemon_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
)

// eventsOf lists those of one type about a node.
func (m *member) eventsOf(typ string, about kevlard.NodeID) (out []report.Event) {
	all := m.Events(time.Time{})
	for _, e := range all {
		if e.Type == typ && e.Peer == string(about) {
			out = append(out, e)
		}
	}
	return out
}

// liarRing has a pipeline of a, b and c, whose middle layers the given nodes say they hold
// too; those of liars compute with other weights. Every link to the liars stands when the
// streams begin.
func liarRing(t *testing.T, others []kevlard.NodeID, liars ...kevlard.NodeID) (r *ring, gateway *member) {
	r = newRing(t)
	r.step = 8 * time.Millisecond
	r.timing.Audit.First = 20 * time.Millisecond
	r.weights = map[kevlard.NodeID]uint64{}
	for _, n := range liars {
		r.weights[n] = 0xbad
	}
	r.start("a", hops[0])
	r.start("b", hops[1])
	r.start("c", hops[2])
	gateway = r.start("gate")
	for _, n := range others {
		r.start(n, hops[1])
	}
	return r, gateway
}

// TestLiarIsFound: a node says that it holds layers, and computes with other weights. Two
// honest holders find it while streams run. Each stream is right, or ends with an error
// that says why before it is complete; when the gateway knows, all are right.
func TestLiarIsFound(t *testing.T) {
	t.Parallel()
	r, gateway := liarRing(t, nil)
	r.timing.Audit.First = time.Second // so that streams are with the liar before it is found
	r.start("b2", hops[1])
	r.ready()
	r.until("the honest holders have confirmed each other", func() bool {
		for _, n := range []kevlard.NodeID{"b", "b2"} {
			if scrape(t, r.members[n])["kevlard_audits_total result=agree"] == 0 {
				return false
			}
		}
		return true
	})
	const length = 450
	var all sync.WaitGroup
	results := make([]result, 8)
	jobs := make([]job, len(results))
	begin := func(i int) {
		jobs[i] = newJob(i, length)
		jobs[i].req.Prompt = prompt(i, 8)
		all.Go(func() { results[i] = generate(t.Context(), gateway, jobs[i], nil) })
	}
	for i := range 4 {
		begin(i)
	}
	r.weights["liar"] = 0xbad
	r.start("liar", hops[1])
	r.until("the gateway uses the liar, or knows of it", func() bool {
		for _, m := range gateway.Members().Nodes {
			if m.Name == "liar" && m.State == "alive" && m.Ready {
				return true
			}
		}
		return false
	})
	for i := 4; i < len(results); i++ {
		begin(i)
	}
	r.until("all honest nodes know of the liar", func() bool {
		for _, m := range r.all() {
			if m.cfg.Name != "liar" && len(m.eventsOf("distrusted", "liar")) == 0 {
				return false
			}
		}
		return true
	})
	all.Wait() // they have all the room there is
	for i := range 6 {
		late := newJob(len(jobs)+i, 40)
		exact(t, late, generate(t.Context(), gateway, late, nil))
	}
	failed := 0
	for i := range results {
		if f := results[i].end.Err; f != nil && f.Code == "disputed" {
			failed++
			if !strings.Contains(f.Message, "node liar") || !strings.Contains(f.Message, hops[1].String()) || !strings.Contains(f.Message, toyTopology().ID.String()) {
				t.Errorf("the error names too little: %s", f.Message)
			}
			continue
		}
		exact(t, jobs[i], results[i])
	}
	t.Logf("%d of %d streams ended with the error, the others were right", failed, len(results))
	for _, n := range []kevlard.NodeID{"b", "b2"} {
		if e := r.members[n].eventsOf("audit-differs", "liar"); len(e) != 1 || !strings.Contains(e[0].Detail, string(n)) || !strings.Contains(e[0].Detail, toyTopology().ID.String()) {
			t.Errorf("%s reports %+v", n, e)
		}
		if e := gateway.eventsOf("distrusted", n); len(e) != 0 {
			t.Errorf("the liar's word bans an honest node: %+v", e)
		}
	}
	named := false
	for _, p := range gateway.Status().Problems {
		named = named || strings.Contains(p.What, "node liar computes layers")
	}
	if !named {
		t.Errorf("status names no liar: %+v", gateway.Status().Problems)
	}
}

// TestTwoThatDispute: where only one honest holder is, nobody else can tell which of the
// two lies. Neither is used, and the error says so.
func TestTwoThatDispute(t *testing.T) {
	t.Parallel()
	r, gateway := liarRing(t, []kevlard.NodeID{"liar"}, "liar")
	r.until("the gateway believes neither", func() bool {
		return len(gateway.eventsOf("distrusted", "liar")) > 0 && len(gateway.eventsOf("distrusted", "b")) > 0
	})
	j := newJob(1, 40)
	got := generate(t.Context(), gateway, j, nil)
	if f := got.end.Err; len(got.tokens) != 0 || f == nil || f.Code != "no_route" || !strings.Contains(f.Message, "compute otherwise") {
		t.Errorf("%d tokens, failure %v", len(got.tokens), f)
	}
	r.start("b2", hops[1]) // a third tells who lies
	r.until("b is believed again", func() bool { return len(gateway.eventsOf("trusted", "b")) > 0 })
	exact(t, j, generate(t.Context(), gateway, newJob(1, 40), nil))
	if len(gateway.eventsOf("trusted", "liar")) != 0 {
		t.Error("the liar is believed again")
	}
}

// TestHonestHoldersAgree is the other half of TestLiarIsFound: the same ring with the right
// weights. It also shows that the audits are made.
func TestHonestHoldersAgree(t *testing.T) {
	t.Parallel()
	r, gateway := liarRing(t, []kevlard.NodeID{"b2", "b3"})
	r.ready()
	streams(t, gateway, 4, 60, func() {}) // which are right
	holders := []kevlard.NodeID{"b", "b2", "b3"}
	r.until("each holder has audited both others", func() bool {
		for _, n := range holders {
			if scrape(t, r.members[n])["kevlard_audits_total result=agree"] < 2 {
				return false
			}
		}
		return true
	}, func() {
		for _, n := range holders {
			t.Logf("%s: %+v", n, r.members[n].Events(time.Time{}))
		}
	})
	for _, m := range r.all() {
		for _, n := range holders {
			if e := append(m.eventsOf("distrusted", n), m.eventsOf("audit-differs", n)...); len(e) != 0 {
				t.Errorf("%s reports %+v", m.cfg.Name, e)
			}
		}
	}
	r.idle() // audits leave nothing at the stages
}
