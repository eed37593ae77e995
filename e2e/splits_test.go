package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard/api"
)

const (
	splitTime  = 60 * time.Second
	healWithin = 2 * time.Minute // the ring is whole again, and all streams have ended
	// clientSilence is how long a client waits for a byte. Nodes send one every 5 s.
	clientSilence = 12 * time.Second
)

// TestSplits cuts eight hosts in two, or makes some deaf for the others, and heals them
// after a minute. Clients try the nodes of both sides. No epoch of a session has two
// owners, no client gets a wrong byte, and all get their answers in the end.
func TestSplits(t *testing.T) {
	needLong(t, "six minutes")
	needRoot(t, "it makes network namespaces")
	lasts := splitTime
	if text := os.Getenv("KEVLARD_E2E_SPLIT"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatalf("KEVLARD_E2E_SPLIT: %v", err)
		}
	}
	// Hosts 1 to 4 hold the model once, 5 to 8 once more.
	n := newSplitNet(t, 8, [][2]int{{0, 2}, {2, 4}, {4, 6}, {6, 8}})
	top, err := api.NewClient(n.nodes[0].socket()).Topology(t.Context())
	if err != nil || len(top.Models) != 1 {
		t.Fatalf("models %+v: %v", top.Models, err)
	}
	requests := splitRequests(top.Models[0].Name)
	want := make([]answer, len(requests))
	for i := range requests {
		r := &roamer{net: n, log: &splitLog{t: t, codes: map[string]int{}}, request: requests[i], rng: rand.New(rand.NewPCG(1, 1))}
		if r.visit(t.Context(), 1+i, -1); !r.done {
			t.Fatalf("no answer: %v", r.log.codes)
		}
		want[i] = r.got
	}
	for _, c := range []struct {
		name string
		a, b []int
		both bool // a is deaf too
	}{
		{"5+3", []int{1, 2, 3, 4, 5}, []int{6, 7, 8}, true},
		{"4+4", []int{1, 2, 3, 4}, []int{5, 6, 7, 8}, true},
		{"1+7", []int{1}, []int{2, 3, 4, 5, 6, 7, 8}, true},
		{"asymmetric", []int{1, 2, 3, 4}, []int{5, 6, 7, 8}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := n.takeovers(t)
			log := &splitLog{t: t, codes: map[string]int{}}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			owners := make(chan map[string]map[string]bool, 1)
			go func() { owners <- n.watch(ctx) }()
			healed := make(chan struct{})
			var streaming, ended sync.WaitGroup
			for k := range n.hosts {
				streaming.Add(1)
				ended.Go(func() { n.roam(ctx, log, k, requests, want, sync.OnceFunc(streaming.Done), healed) })
			}
			streaming.Wait()
			began := time.Now()
			n.deafen(t, c.b, c.a)
			if c.both {
				n.deafen(t, c.a, c.b)
			}
			time.Sleep(lasts) // how long the split lasts is what is tested
			n.heal(t)
			heal := time.Now()
			close(healed)
			time.AfterFunc(healWithin, cancel)
			n.whole(t)
			whole := time.Since(heal)
			ended.Wait()
			cancel()
			epochs := <-owners
			for _, epoch := range slices.Sorted(maps.Keys(epochs)) {
				if who := epochs[epoch]; len(who) > 1 {
					t.Errorf("%s has the owners %v", epoch, slices.Sorted(maps.Keys(who)))
				}
			}
			if log.answers == 0 || len(epochs) == 0 {
				t.Error("no answers, or no sessions were seen: it proves nothing")
			}
			t.Logf("split for %v; after it the last stream took %v and the ring %v; %d answers, %d takeovers, %d epochs seen, %v",
				heal.Sub(began).Round(time.Millisecond), log.last.Sub(heal).Round(time.Millisecond), whole.Round(time.Millisecond), log.answers, n.takeovers(t)-before, len(epochs), log.codes)
		})
	}
}

// splitLog is what happened to all clients of one split.
type splitLog struct {
	t       *testing.T
	mu      sync.Mutex
	codes   map[string]int // errors on the way
	answers int
	last    time.Time // the last answer was whole
}

// documented are the errors that a client may see; the last two it says itself.
var documented = []string{
	"session_busy", "session_not_found", "session_no_quorum", "draining", "no_route", "owner_lost", "capacity", "overloaded",
	"no connection", "broken connection",
}

func (l *splitLog) saw(node int, code, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.codes[code]++
	if !slices.Contains(documented, code) {
		l.t.Errorf("node %d: code %q: %s", node, code, message)
	}
}

// roam gets one answer after the other, at first from a node of its own, until the split
// is healed. It calls streaming in the middle of the first.
func (n *splitNet) roam(ctx context.Context, log *splitLog, k int, requests []map[string]any, want []answer, streaming func(), healed <-chan struct{}) {
	defer streaming()
	rng := rand.New(rand.NewPCG(uint64(k), 2))
	var lingering sync.WaitGroup
	defer lingering.Wait()
	for i, first := k, -1; ; i, first = i+1, 5+rng.IntN(100) {
		r := &roamer{net: n, log: log, request: requests[i%len(requests)], want: want[i%len(want)], rng: rng, lingering: &lingering, fresh: streaming}
		for node, stopAt := 1+k, first; !r.done; node, stopAt = 1+rng.IntN(len(n.hosts)), 5+rng.IntN(100) {
			r.visit(ctx, node, stopAt)
			select {
			case <-ctx.Done():
				log.t.Errorf("client %d: request %d does not end; the last event is %q; seen %v", k, i%len(requests), r.last, r.seen)
				return
			case <-time.After(time.Duration(20+rng.IntN(200)) * time.Millisecond): // its back-off
			}
		}
		log.mu.Lock()
		log.answers++
		log.last = time.Now()
		log.mu.Unlock()
		if !r.got.same(r.want) {
			log.t.Errorf("client %d: request %d: got\n%+v\nwant\n%+v", k, i%len(requests), r.got, r.want)
		}
		select {
		case <-healed:
			return
		default:
		}
	}
}

// roamer is a client that goes from node to node until it has its answer.
type roamer struct {
	net       *splitNet
	log       *splitLog
	request   map[string]any
	want, got answer
	rng       *rand.Rand
	last      string // id of the last event
	done      bool
	fresh     func() // called at events
	lingering *sync.WaitGroup
	seen      []string // the latest errors
}

func (r *roamer) saw(node int, code, message string) {
	r.log.saw(node, code, message)
	if r.seen = append(r.seen, fmt.Sprintf("%d:%s:%s", node, code, message)); len(r.seen) > 12 {
		r.seen = r.seen[1:]
	}
}

// visit takes what a node sends, or so many events of it. Sometimes it leaves without
// closing the connection, as a phone does that changes networks.
func (r *roamer) visit(ctx context.Context, node, stopAt int) {
	ctx, cancel := context.WithCancel(ctx)
	silent := time.AfterFunc(clientSilence, cancel)
	leave := func() { silent.Stop(); cancel() }
	body, err := json.Marshal(r.request)
	if err != nil {
		r.log.t.Error(err)
	}
	resp, err := r.net.ask(ctx, http.MethodPost, node, "/v1/completions", r.last, bytes.NewReader(body))
	if err != nil {
		leave()
		r.saw(node, "no connection", err.Error())
		return
	}
	if resp.StatusCode != http.StatusOK {
		var e struct {
			Error struct{ Code, Message string }
		}
		_ = json.NewDecoder(resp.Body).Decode(&e) // without a code it is none of the documented ones
		leave()
		r.saw(node, e.Error.Code, fmt.Sprintf("status %d: %s", resp.StatusCode, e.Error.Message))
		return
	}
	lines := bufio.NewScanner(resp.Body)
	switch r.read(node, lines, silent, &r.got, stopAt) {
	case cut:
		r.saw(node, "broken connection", "")
	case whole:
		r.done = true
	case enough:
		if r.rng.IntN(3) > 0 {
			break
		}
		// What the old connection still brings must be right, too.
		old := *r
		old.seen = nil
		r.lingering.Go(func() {
			defer leave()
			stay := time.AfterFunc(time.Duration(node)*time.Second, cancel)
			defer stay.Stop()
			old.read(node, lines, silent, &old.got, -1)
			old.right(node)
		})
		return
	}
	leave()
	r.right(node)
}

// right checks that what there is of the answer is its begin.
func (r *roamer) right(node int) {
	if r.want.head == "" {
		return // this answer is the one that others are compared with
	}
	for i, c := range r.got.choices {
		if !strings.HasPrefix(r.want.choices[i].text, c.text) {
			r.log.t.Errorf("node %d: choice %d is %q, want %q", node, i, c.text, r.want.choices[i].text)
		}
	}
}

// outcome is how reading ended.
type outcome int

const (
	cut    outcome = iota // the connection broke
	failed                // an error says why
	enough
	whole
)

// read takes events until it has so many, or all.
func (r *roamer) read(node int, lines *bufio.Scanner, silent *time.Timer, to *answer, stopAt int) outcome {
	id := ""
	for events := 0; lines.Scan(); {
		silent.Reset(clientSilence)
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch {
		case name == "id":
			id = value
			continue
		case name != "data":
			continue
		case value == "[DONE]":
			return whole
		}
		var e struct {
			Error *struct{ Code, Message string }
		}
		err := json.Unmarshal([]byte(value), &e)
		if err == nil && e.Error != nil {
			r.saw(node, e.Error.Code, e.Error.Message)
			return failed
		}
		if err == nil {
			err = to.add(json.RawMessage(value))
		}
		if err != nil {
			r.log.t.Errorf("node %d: %q: %v", node, value, err)
			return failed
		}
		if r.last = id; r.fresh != nil {
			r.fresh()
		}
		if events++; events == stopAt {
			return enough
		}
	}
	return cut
}
