package e2e

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/topology"
)

// settleWithin is how long hosts have after a split until each holds what it should.
const settleWithin = 3 * time.Minute

// TestPlannedSplits cuts eight hosts that take the stages of the plan, and heals them: in
// parts of five and three, of four, and without one host, which is also K31 and, at three
// times the duration, K22. A split lasts until each part has taken on what it lacks.
// Afterwards they are one ring again, and everything is held already: nothing more is
// loaded. No process was started anew, no client got a wrong byte, and no epoch of a session
// has two owners.
//
// The least that a part has to load is each range that fewer than two of its hosts hold (one,
// in a part of one), once for each holder that lacks.
func TestPlannedSplits(t *testing.T) {
	needLong(t, "eight minutes, or twelve with KEVLARD_E2E_SPLIT=60s")
	needRoot(t, "it makes network namespaces")
	lasts := splitLasts(t, 30*time.Second)
	n := newSplitNet(t, splitLayout{hosts: 8})
	n.settled(t, time.Now().Add(settleWithin))
	requests, want := n.unbroken(t)
	for _, c := range []struct {
		cutting
		times time.Duration
	}{
		{cutting{"5+3", []int{1, 2, 3, 4, 5}, []int{6, 7, 8}, true}, 1},
		{cutting{"4+4", []int{1, 2, 3, 4}, []int{5, 6, 7, 8}, true}, 1},
		{cutting{"1+7", []int{1}, []int{2, 3, 4, 5, 6, 7, 8}, true}, 1},
		{cutting{"K22", []int{8}, []int{1, 2, 3, 4, 5, 6, 7}, true}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, boots := n.held(t), n.boots(t)
			h := n.split(t, c.cutting, []int{1, 4, 8}, requests, want, c.times*lasts, func() {
				began := time.Now()
				for _, part := range [][]int{c.a, c.b} {
					n.reformed(t, before, part)
					t.Logf("%v has everything %v after the split at the latest", part, time.Since(began).Round(100*time.Millisecond))
				}
			})
			settled := n.settled(t, h.healed.Add(settleWithin))
			if got := n.boots(t); !maps.Equal(got, boots) {
				t.Errorf("the daemons' lives are %v, and were %v", got, boots)
			}
			after := n.held(t)
			moved := n.moves(t, h.began)
			for _, part := range [][]int{c.a, c.b} {
				least := before.lacking(part)
				loaded := moved.loaded(part, h.began, h.healed)
				t.Logf("%v: %s held; %d bytes loaded in %d stages while it was split, the least is %d",
					part, before.of(part), loaded.bytes, loaded.stages, least)
				if loaded.bytes != least {
					t.Errorf("part %v loaded %d bytes, and the least is %d: %v", part, loaded.bytes, least, moved)
				}
			}
			all := slices.Concat(c.a, c.b)
			late := moved.loaded(all, h.healed, time.Now())
			if late.bytes > 0 {
				t.Errorf("%d bytes were loaded after the heal, when all was held already: %v", late.bytes, moved)
			}
			t.Logf("after the heal: one ring %v, settled %v later at the latest; %d stages released, %d bytes loaded; %d of 8 hosts hold something else than before",
				h.whole.Sub(h.healed).Round(100*time.Millisecond), settled.Sub(h.healed).Round(100*time.Millisecond), moved.count("release", h.healed), late.bytes, before.differs(after))
			n.calm(t)
		})
	}
}

// heldStages is what hosts hold ready.
type heldStages struct {
	stages map[int][][2]int // by host, in order
	bytes  map[[2]int]int64
}

// held asks all hosts but some what they hold.
func (n *splitNet) held(t *testing.T, except ...int) heldStages {
	t.Helper()
	h := heldStages{map[int][][2]int{}, map[[2]int]int64{}}
	for i, s := range n.nodes {
		if slices.Contains(except, i+1) {
			continue
		}
		st, err := api.NewClient(s.socket()).Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range st.Stages {
			if x.State == string(topology.Ready) {
				h.stages[i+1] = append(h.stages[i+1], [2]int{x.Lo, x.Hi})
			}
		}
		for _, e := range st.Engines {
			h.bytes[[2]int{e.Lo, e.Hi}] = e.WeightBytes
		}
	}
	return h
}

// of says what a part holds.
func (h heldStages) of(part []int) string {
	var out []string
	for _, i := range part {
		out = append(out, fmt.Sprintf("%d:%v", i, h.stages[i]))
	}
	return strings.Join(out, " ")
}

// lacking is how many bytes a part has to load to hold everything twice, or once if it is
// one host.
func (h heldStages) lacking(part []int) (bytes int64) {
	for r, size := range h.bytes {
		holders := 0
		for _, i := range part {
			if slices.Contains(h.stages[i], r) {
				holders++
			}
		}
		bytes += size * int64(max(0, min(2, len(part))-holders))
	}
	return bytes
}

// reformed waits until a part holds everything that there was, twice if it can.
func (n *splitNet) reformed(t *testing.T, before heldStages, part []int) {
	t.Helper()
	eventually(t, settleWithin, func() error {
		now := n.held(t)
		if now.bytes = before.bytes; now.lacking(part) > 0 {
			return fmt.Errorf("%v hold %s", part, now.of(part))
		}
		return nil
	})
}

// differs counts the hosts that hold something else.
func (h heldStages) differs(o heldStages) (hosts int) {
	for i := range max(len(h.stages), len(o.stages)) {
		if !slices.Equal(h.stages[i+1], o.stages[i+1]) {
			hosts++
		}
	}
	return hosts
}

// moves are what hosts did with stages.
type moves []movement

type movement struct {
	at    time.Time
	host  int
	what  string // as in the event
	cause string
	bytes int64 // of an adoption
}

func (m movement) String() string {
	return fmt.Sprintf("%s %d: %s (%s)", m.at.Format("05.000"), m.host, m.what, m.cause)
}

// moves asks all hosts but some what they did with stages since some time, in order.
func (n *splitNet) moves(t *testing.T, since time.Time, except ...int) (out moves) {
	t.Helper()
	for i, s := range n.nodes {
		if slices.Contains(except, i+1) {
			continue
		}
		for _, e := range s.events(t, since) {
			if e.Type != "reform" {
				continue
			}
			m := movement{at: e.At, host: i + 1, what: e.Detail, cause: e.Cause}
			var lo, hi int
			var model string
			if k, _ := fmt.Sscanf(e.Detail, "adopt stage [%d,%d) of %s %d bytes", &lo, &hi, &model, &m.bytes); k < 4 {
				m.bytes = 0
			}
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b movement) int { return a.at.Compare(b.at) })
	return out
}

// events returns what a node says that happened since some time.
func (s *single) events(t *testing.T, since time.Time) (out []report.Event) {
	t.Helper()
	err := api.NewClient(s.socket()).Events(t.Context(), time.Since(since), false, func(e report.Event) error {
		out = append(out, e)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// loads are stages that were begun to be loaded.
type loads struct {
	stages int
	bytes  int64
}

func (m moves) loaded(hosts []int, from, to time.Time) (l loads) {
	for _, x := range m {
		if x.bytes > 0 && slices.Contains(hosts, x.host) && !x.at.Before(from) && x.at.Before(to) {
			l.stages++
			l.bytes += x.bytes
		}
	}
	return l
}

func (m moves) count(verb string, from time.Time) (n int) {
	for _, x := range m {
		if strings.HasPrefix(x.what, verb+" ") && !x.at.Before(from) {
			n++
		}
	}
	return n
}

// boots are the lives of all hosts, by name.
func (n *splitNet) boots(t *testing.T) map[string]string {
	t.Helper()
	m, err := api.NewClient(n.nodes[0].socket()).Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, x := range m.Nodes {
		out[x.Name] = x.Boot
	}
	return out
}

// settled waits until every host sees two pipelines and nothing else, and returns when.
func (n *splitNet) settled(t *testing.T, by time.Time) time.Time {
	t.Helper()
	eventually(t, time.Until(by), func() error {
		for _, s := range n.nodes {
			top, err := api.NewClient(s.socket()).Topology(t.Context())
			if err != nil {
				return err
			}
			if len(top.Models) != 1 {
				return errors.New("no model")
			}
			if err := wholeModel(top.Models[0], 2); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		for i, stages := range n.held(t).stages {
			if len(stages) != 1 {
				return fmt.Errorf("host %d holds %v", i, stages)
			}
		}
		return nil
	})
	return time.Now()
}

// calm holds that what has settled stays as it is, for longer than any settle time.
func (n *splitNet) calm(t *testing.T) {
	t.Helper()
	since := time.Now()
	time.Sleep(35 * time.Second) // that nothing happens is what is tested
	if moved := n.moves(t, since); len(moved) > 0 {
		t.Errorf("what had settled moved: %v", moved)
	}
}
