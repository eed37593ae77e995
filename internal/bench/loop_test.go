package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
	"github.com/kevlard/kevlard/internal/measure"
	"github.com/kevlard/kevlard/model"
	"github.com/kevlard/kevlard/model/fairy"
)

// TestOpenLoopDoesNotWait starts streams of which the first ends last.
func TestOpenLoopDoesNotWait(t *testing.T) {
	third := make(chan struct{})
	got := openLoop(nil, listed([]time.Duration{0, 0, time.Millisecond}), func(i int) arrival {
		if i == 2 {
			close(third)
		}
		<-third
		return arrival{variant: i}
	})
	var order []int
	for _, a := range got {
		order = append(order, a.variant)
	}
	if slices.Sort(order); !slices.Equal(order, []int{0, 1, 2}) {
		t.Errorf("streams %v", order)
	}
}

// TestOpenLoopStops ends an endless one: no stream begins afterwards, and those under
// way are waited for.
func TestOpenLoopStops(t *testing.T) {
	stop := make(chan struct{})
	leave := make(chan struct{})
	var once sync.Once
	got := openLoop(stop, steadily(1000), func(i int) arrival {
		if i == 3 {
			once.Do(func() {
				close(stop)
				go func() {
					time.Sleep(20 * time.Millisecond) // so that a stream that should not begin could
					close(leave)
				}()
			})
		}
		<-leave
		return arrival{}
	})
	if len(got) < 4 {
		t.Errorf("%d streams, want 4 or more", len(got))
	}
}

func TestRipe(t *testing.T) {
	c := Contexts{50, 900}
	for _, x := range []struct {
		p    progress
		want bool
	}{
		{progress{prompt: 42, shown: 8, most: 100}, true},
		{progress{prompt: 41, shown: 8, most: 100}, false},  // too short yet
		{progress{prompt: 200, shown: 7, most: 100}, false}, // nothing to compare with
		{progress{prompt: 200, shown: 76, most: 100}, true},
		{progress{prompt: 200, shown: 77, most: 100}, false}, // it could end before it misses its host
		{progress{prompt: 880, shown: 21, most: 100}, false}, // too long
	} {
		if got := x.p.ripe(c); got != x.want {
			t.Errorf("%+v: %t", x.p, got)
		}
	}
	b := newBoard()
	each := b.follow(3, load.Request{PromptIDs: make([]int32, 60), MaxTokens: 100})
	for range 10 {
		each("s", load.Piece{IDs: []int32{1}})
	}
	sessions := []report.Session{
		{ID: "s", State: "decode", Route: []string{"node-1", "node-2"}},
		{ID: "unknown", State: "decode", Route: []string{"node-1"}},
	}
	if got := ripeThrough(sessions, "node-2", b, c); len(got) != 1 || got["s"] != (progress{3, 60, 10, 100}) {
		t.Errorf("through node-2: %v", got)
	}
	if got := ripeThrough(sessions, "node-3", b, c); len(got) != 0 {
		t.Errorf("through node-3: %v", got)
	}
	sessions[0].State = "recovering"
	if got := ripeThrough(sessions, "node-2", b, c); len(got) != 0 {
		t.Errorf("while it recovers: %v", got)
	}
}

// TestRequestsCoverTheContexts writes prompts with the bundled model's tokenizer.
func TestRequestsCoverTheContexts(t *testing.T) {
	path := filepath.Join(t.TempDir(), fairy.Name)
	if err := os.WriteFile(path, fairy.GGUF(), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := model.Load(path, "")
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPrompter(m)
	if err != nil {
		t.Fatal(err)
	}
	c := Contexts{50, 900}
	requests, err := p.Requests("fairy", c, 200, m.Context)
	if err != nil {
		t.Fatal(err)
	}
	short, long := 1<<20, 0
	for i, r := range requests {
		n := len(r.PromptIDs)
		if n+r.MaxTokens > m.Context || r.MaxTokens < minShown+minLeft {
			t.Errorf("request %d has %d tokens and asks for %d more", i, n, r.MaxTokens)
		}
		for j := range i {
			if slices.Equal(r.PromptIDs[:8], requests[j].PromptIDs[:8]) {
				t.Errorf("requests %d and %d begin alike", i, j)
			}
		}
		short, long = min(short, n+minShown), max(long, n+minShown)
	}
	if short > c.Min || long < c.Max-60 || long > c.Max {
		t.Errorf("contexts are from %d to %d", short, long)
	}
}

func TestContextsThatDoNotFit(t *testing.T) {
	for c, ok := range map[Contexts]bool{
		{50, 900}: true, {12, 12}: true, {50, 1000}: true, {50, 1001}: false, {11, 900}: false, {500, 400}: false,
	} {
		if err := c.Check(1024); (err == nil) != ok {
			t.Errorf("%v: %v", c, err)
		}
	}
}

func TestChoose(t *testing.T) {
	every := func(int) bool { return true }
	for _, c := range []struct {
		name  string
		i     int
		turns []int
		ripe  func(int) bool
		want  int
	}{
		{"the first in turn", 0, []int{0, 0, 0, 0}, every, 0},
		{"the next in turn", 1, []int{1, 0, 0, 0}, every, 3},
		{"least often broken", 4, []int{2, 1, 2, 0}, every, 3},
		{"of those that are ripe", 1, []int{3, 2, 0, 0}, func(h int) bool { return h < 2 }, 1},
		{"none", 0, []int{0, 0}, func(int) bool { return false }, -1},
	} {
		if got := choose(c.i, c.turns, c.ripe); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// fakeSide notes what is done to it.
type fakeSide struct {
	mu    sync.Mutex
	did   []string
	limit int // of breaks
}

func (s *fakeSide) note(format string, a ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.did = append(s.did, fmt.Sprintf(format, a...))
}

func (s *fakeSide) stream(context.Context, int, load.Request) arrival { return arrival{} }

func (s *fakeSide) breakHost(_ context.Context, i int) error {
	if s.limit--; s.limit < 0 {
		return errors.New("no more")
	}
	s.note("break %d", i)
	return nil
}

func (s *fakeSide) mend(_ context.Context, i int) error {
	s.note("mend %d", i)
	return nil
}

func TestFollow(t *testing.T) {
	plan := measure.Plan(1000, 2, 4, 10*time.Millisecond, 5*time.Millisecond)
	s := &fakeSide{limit: 2}
	streams, err := follow(t.Context(), s, plan, make([]load.Request, 3))
	if want := []string{"break 0", "mend 0", "break 3", "mend 3"}; err != nil || !slices.Equal(s.did, want) || len(streams) != len(plan.Arrivals) {
		t.Errorf("%d streams of %d, did %q, %v", len(streams), len(plan.Arrivals), s.did, err)
	}
	if _, err := follow(t.Context(), &fakeSide{limit: 1}, plan, make([]load.Request, 3)); err == nil {
		t.Error("a fault that failed passed")
	}
}

// TestRingsShareNothing wants each node of the fail-stop rings told apart from all
// others by its address and its group.
func TestRingsShareNothing(t *testing.T) {
	rings := ringOptions(devmesh.Options{Nodes: 6, Stages: 2, Gateways: 1, Standbys: 1, GroupBase: 100})
	next, group := 0, 100
	for i, o := range rings {
		if o.Nodes != 2 || o.Stages != 2 || o.Gateways != 1 || o.Standbys != 0 || !slices.Equal(o.GatewayStandbys, []int{0}) {
			t.Errorf("ring %d: %+v", i, o)
		}
		if o.SkipAddresses != next || o.GroupBase != group {
			t.Errorf("ring %d begins at address %d, group %d; want %d, %d", i, o.SkipAddresses, o.GroupBase, next, group)
		}
		next, group = next+o.Nodes+o.Gateways, group+o.Nodes+o.Gateways
	}
	if len(rings) != 3 {
		t.Errorf("%d rings, want 3", len(rings))
	}
}

func TestLinked(t *testing.T) {
	s := report.Status{Node: "node-1", Links: []report.Link{{Up: true}, {Up: true, Silent: true}, {}}}
	if err := linked(s, 1); err != nil {
		t.Error(err)
	}
	if err := linked(s, 2); err == nil || err.Error() != "node-1 has links to 1 of 2 peers" {
		t.Errorf("got %v", err)
	}
}

func TestParseFault(t *testing.T) {
	for _, f := range Faults() {
		if got, err := ParseFault(string(f)); got != f || err != nil {
			t.Errorf("%s: %v, %v", f, got, err)
		}
	}
	if _, err := ParseFault("x"); err == nil || err.Error() != "--fault x: want one of kill, stop, drop, engine-kill, slow" {
		t.Errorf("got %v", err)
	}
}
