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
	"github.com/kevlard/kevlard/daemon/report"
)

const (
	splitTime  = 60 * time.Second
	healWithin = 2 * time.Minute // the ring is whole again, and all streams have ended
	// clientSilence is how long a client waits for a byte. Nodes send one every 5 s.
	clientSilence = 12 * time.Second
)

// splitLasts is how long a split lasts: KEVLARD_E2E_SPLIT, or what the test says.
func splitLasts(t *testing.T, otherwise time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv("KEVLARD_E2E_SPLIT")
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("KEVLARD_E2E_SPLIT: %v", err)
	}
	return d
}

// TestSplits cuts eight hosts in two, or makes some deaf for the others, and heals them
// after a minute. Clients try the nodes of both sides. No epoch of a session has two
// owners, no client gets a wrong byte, and all get their answers in the end.
func TestSplits(t *testing.T) {
	needLong(t, "six minutes")
	needRoot(t, "it makes network namespaces")
	lasts := splitLasts(t, splitTime)
	// Hosts 1 to 4 hold the model once, 5 to 8 once more.
	n := newSplitNet(t, splitLayout{hosts: 8, stages: [][2]int{{0, 2}, {2, 4}, {4, 6}, {6, 8}}})
	requests, want := n.unbroken(t)
	clients := []int{1, 2, 3, 4, 5, 6, 7, 8}
	for _, c := range []cutting{
		{"5+3", []int{1, 2, 3, 4, 5}, []int{6, 7, 8}, true},
		{"4+4", []int{1, 2, 3, 4}, []int{5, 6, 7, 8}, true},
		{"1+7", []int{1}, []int{2, 3, 4, 5, 6, 7, 8}, true},
		{"asymmetric", []int{1, 2, 3, 4}, []int{5, 6, 7, 8}, false},
	} {
		t.Run(c.name, func(t *testing.T) { n.split(t, c, clients, requests, want, lasts, func() {}) })
	}
}

// cutting is a way to split hosts.
type cutting struct {
	name string
	a, b []int
	both bool // a is deaf too
}

// unbroken returns requests and the answers to them while all is well.
func (n *splitNet) unbroken(t *testing.T) (requests []map[string]any, want []answer) {
	t.Helper()
	top, err := api.NewClient(n.nodes[0].socket()).Topology(t.Context())
	if err != nil || len(top.Models) != 1 {
		t.Fatalf("models %+v: %v", top.Models, err)
	}
	requests = splitRequests(top.Models[0].Name)
	want = make([]answer, len(requests))
	for i := range requests {
		r := &roamer{net: n, log: &splitLog{t: t, codes: map[string]int{}}, request: requests[i], rng: rand.New(rand.NewPCG(1, 1))}
		if r.visit(t.Context(), 1+i, -1); !r.done {
			t.Fatalf("no answer: %v", r.log.codes)
		}
		want[i] = r.got
	}
	return requests, want
}

// healing is when a split began and was healed, and when the ring was whole again.
type healing struct{ began, healed, whole time.Time }

// split cuts the hosts, calls during, heals them, and judges what clients got meanwhile,
// who begin at some of the nodes.
func (n *splitNet) split(t *testing.T, c cutting, clients []int, requests []map[string]any, want []answer, lasts time.Duration, during func()) (h healing) {
	before := n.takeovers(t)
	log := &splitLog{t: t, codes: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	epochs := map[string]map[string]bool{}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		n.watch(ctx, func(x report.Session) {
			epoch := fmt.Sprintf("%s, epoch %d", x.ID, x.Epoch)
			if epochs[epoch] == nil {
				epochs[epoch] = map[string]bool{}
			}
			epochs[epoch][x.Owner] = true
		})
	}()
	healed := make(chan struct{})
	var streaming, ended sync.WaitGroup
	for _, k := range clients {
		streaming.Add(1)
		ended.Go(func() { n.roam(ctx, log, k-1, requests, want, sync.OnceFunc(streaming.Done), healed) })
	}
	streaming.Wait()
	h.began = time.Now()
	n.deafen(t, c.b, c.a)
	if c.both {
		n.deafen(t, c.a, c.b)
	}
	during()
	time.Sleep(time.Until(h.began.Add(lasts))) // how long the split lasts is what is tested
	n.heal(t)
	h.healed = time.Now()
	close(healed)
	time.AfterFunc(healWithin, cancel)
	n.whole(t)
	h.whole = time.Now()
	ended.Wait()
	cancel()
	<-watched
	for _, epoch := range slices.Sorted(maps.Keys(epochs)) {
		if who := epochs[epoch]; len(who) > 1 {
			t.Errorf("%s has the owners %v", epoch, slices.Sorted(maps.Keys(who)))
		}
	}
	if log.answers == 0 || len(epochs) == 0 {
		t.Error("no answers, or no sessions were seen: it proves nothing")
	}
	t.Logf("split for %v; after it the last stream took %v and the ring %v; %d answers, %d takeovers, %d epochs seen, %v",
		h.healed.Sub(h.began).Round(time.Millisecond), log.last.Sub(h.healed).Round(time.Millisecond), h.whole.Sub(h.healed).Round(time.Millisecond),
		log.answers, n.takeovers(t)-before, len(epochs), log.codes)
	return h
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
