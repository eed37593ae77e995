package sim_test

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard/internal/sim"
)

var (
	seeds = flag.Int("seeds", 200, "how many seeds TestSeeds plays")
	first = flag.Uint64("first", 1, "the first of them")
	seed  = flag.Uint64("seed", 0, "play only this seed")
	widow = flag.Bool("widow", false, "play -seed as one of lost owners")
	plan  = flag.Bool("planned", false, "play -seed as one of hosts that follow the plan")
	turns = flag.Bool("replaced", false, "play -seed as one of hosts that die in turn and are replaced")
	check = flag.Bool("audited", false, "play -seed with audits")
	liar  = flag.Bool("liar", false, "play -seed as one with a host that lies")
	storm = flag.Bool("storm", false, "play -seed as a storm")
	show  = flag.Bool("show", false, "print the trace of -seed")
	most  = flag.Int("failures", 50, "how many failing seeds are listed before a run ends")
)

// TestSeeds plays many seeds and lists those that fail, each in one line.
func TestSeeds(t *testing.T) {
	if *seed != 0 {
		o := sim.Options{}
		if *show {
			o.Trace = os.Stdout
		}
		sc := sim.FromSeed(*seed)
		if *storm {
			sc = sim.Storm(*seed)
		}
		if *plan {
			sc = sim.Planned(*seed)
		}
		if *turns {
			sc = sim.Replaced(*seed)
		}
		if *widow {
			sc = sim.Widows(*seed)
		}
		sc.Audit = *check
		if *liar {
			sc = sim.Liars(*seed)
		}
		t.Logf("%+v", sc)
		r := sim.Run(sc, o)
		t.Log(r)
		for _, v := range r.Violations {
			t.Error(v)
		}
		return
	}
	total := play(t, "", *first, *seeds, sim.FromSeed)
	t.Logf("%+v", total)
	t.Logf("%d restarts on other nodes, %.1f tokens computed again in each; %d of them with an acknowledged copy, %d went on from it, %.1f tokens computed again",
		total.Moved, mean(total.Recomputed, total.Moved), total.Copied, total.WentOn, mean(total.AfterCopy, total.WentOn))
	if *seeds >= 100 && (total.Failovers == 0 || total.Stale == 0 || total.Finished == 0 || total.Cancelled == 0 || total.Failed == 0 || total.Followed == 0 || total.Followed == total.Resumed) {
		t.Errorf("the seeds meet too little to prove anything: %+v", total)
	}
	if *seeds >= 100 && (2*total.WentOn < total.Copied || total.WentOn == 0 || total.Again == 0 || total.Refused == 0) {
		t.Errorf("copies are hardly used: %d of %d restarts went on from one", total.WentOn, total.Copied)
	}
}

func mean(sum, n int) float64 { return float64(sum) / float64(max(1, n)) }

// TestStorms plays seeds of many sessions and many link and engine faults.
func TestStorms(t *testing.T) {
	if *seed != 0 {
		t.Skip("-seed plays one seed of TestSeeds")
	}
	t.Logf("%+v", play(t, " -storm", *first, max(25, *seeds/20), sim.Storm))
}

// TestWidows plays seeds of owners that are lost.
func TestWidows(t *testing.T) {
	if *seed != 0 {
		t.Skip("-seed plays one seed of TestSeeds")
	}
	total := play(t, " -widow", *first, max(50, *seeds/10), sim.Widows)
	t.Logf("%+v", total)
	if total.TakenOver == 0 || 4*total.Lost > total.Finished {
		t.Errorf("%d sessions were taken over, %d lost", total.TakenOver, total.Lost)
	}
}

// TestAudited plays seeds of all kinds of faults in which hosts audit each other: nobody
// is accused of anything, and nothing else goes wrong.
func TestAudited(t *testing.T) {
	if *seed != 0 {
		t.Skip("-seed plays one seed of TestSeeds")
	}
	total := play(t, " -audited", *first, max(40, *seeds/10), func(seed uint64) sim.Scenario {
		s := sim.FromSeed(seed)
		s.Audit = true
		return s
	})
	t.Logf("%+v", total)
	if total.Audits == 0 {
		t.Error("nobody was audited")
	}
}

// TestLiars plays seeds in which one host computes with other weights than it says: who knows
// of it shows nothing wrong any more, whatever else fails.
func TestLiars(t *testing.T) {
	if *seed != 0 {
		t.Skip("-seed plays one seed of TestSeeds")
	}
	total := play(t, " -liar", *first, max(40, *seeds/20), sim.Liars)
	t.Logf("%+v", total)
	if total.Found == 0 || total.Wrong == 0 || total.Finished < total.Sessions/2 {
		t.Error("nothing was shown")
	}
}

// TestPlanned plays seeds of hosts without configured stages: the mesh forms, and forms
// again under all kinds of faults.
func TestPlanned(t *testing.T) {
	if *seed != 0 {
		t.Skip("-seed plays one seed of TestSeeds")
	}
	t.Logf("%+v", play(t, " -planned", *first, max(15, *seeds/20), sim.Planned))
}

// TestReplaced plays seeds of hosts that die one after the other, while the rest takes
// their layers on: no session may fail.
func TestReplaced(t *testing.T) {
	if *seed != 0 {
		t.Skip("-seed plays one seed of TestSeeds")
	}
	total := play(t, " -replaced", *first, max(10, *seeds/20), sim.Replaced)
	t.Logf("%+v", total)
	if total.Failovers == 0 {
		t.Error("nobody noticed that hosts died")
	}
}

// play runs n seeds on two threads and adds up what they did. It goes on after a seed
// that fails, so that one run lists many.
func play(t *testing.T, how string, first uint64, n int, draw func(uint64) sim.Scenario) sim.Stats {
	t.Helper()
	var mu sync.Mutex
	total := sim.Stats{Errors: map[string]int{}}
	played, bad := 0, 0
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			for played < n && bad < *most {
				s := first + uint64(played)
				played++
				mu.Unlock()
				r := sim.Run(draw(s), sim.Options{})
				mu.Lock()
				add(&total, r.Stats)
				if len(r.Violations) > 0 {
					bad++
					t.Errorf("seed %d%s: %d violations, the first: %s", s, how, len(r.Violations), line(r.Violations[0]))
				}
			}
		})
	}
	wg.Wait()
	if bad > 0 {
		t.Errorf("%d of %d seeds fail; replay: go test ./internal/sim -run TestSeeds -seed N%s -show -v", bad, played, how)
	}
	return total
}

// line is the first line of a violation: one that is a panic has its stack below.
func line(violation string) string {
	first, _, _ := strings.Cut(violation, "\n")
	return first
}

func add(to *sim.Stats, s sim.Stats) {
	to.Sessions += s.Sessions
	to.Finished += s.Finished
	to.Cancelled += s.Cancelled
	to.Failed += s.Failed
	to.Lost += s.Lost
	to.Tokens += s.Tokens
	to.Failovers += s.Failovers
	to.Stale += s.Stale
	to.Resumed += s.Resumed
	to.Followed += s.Followed
	to.TakenOver += s.TakenOver
	to.Events += s.Events
	to.Moved += s.Moved
	to.Copied += s.Copied
	to.WentOn += s.WentOn
	to.Recomputed += s.Recomputed
	to.AfterCopy += s.AfterCopy
	to.Loaded += s.Loaded
	to.Rotten += s.Rotten
	to.Audits += s.Audits
	to.Wrong += s.Wrong
	to.Found += s.Found
	to.Banned += s.Banned
	to.Again += s.Again
	to.Refused += s.Refused
	to.WorstGap = max(to.WorstGap, s.WorstGap)
	for k, n := range s.Errors {
		to.Errors[k] += n
	}
}

// TestRegressions plays the seeds that once failed; testdata/seeds says why.
func TestRegressions(t *testing.T) {
	b, err := os.ReadFile("testdata/seeds")
	if err != nil {
		t.Fatal(err)
	}
	played := 0
	for line := range strings.Lines(string(b)) {
		text, _, _ := strings.Cut(line, "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		draw := sim.FromSeed
		if rest, ok := strings.CutPrefix(text, "plain "); ok {
			draw, text = sim.Plain, rest
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("testdata/seeds: %v", err)
		}
		played++
		if r := sim.Run(draw(n), sim.Options{}); len(r.Violations) > 0 {
			t.Errorf("%v\n%s", r, strings.Join(r.Violations, "\n"))
		}
	}
	if played == 0 {
		t.Error("testdata/seeds lists no seed")
	}
}

// TestRottenBlocks is K45 in whole meshes: bits of stored KV flip, and hosts and engines
// die, so that sessions go on from it. What is damaged is found and computed again.
func TestRottenBlocks(t *testing.T) {
	total := sim.Stats{Errors: map[string]int{}}
	for s := range uint64(40) {
		sc := sim.Pressure(s + 1)
		sc.Tight, sc.Kinds = false, []sim.Kind{sim.Kill, sim.EngineKill, sim.Rot}
		r := sim.Run(sc, sim.Options{})
		for _, v := range r.Violations {
			t.Errorf("seed %d: %s", s+1, line(v))
		}
		add(&total, r.Stats)
	}
	t.Logf("%d damaged positions were found, %d loaded", total.Rotten, total.Loaded)
	if total.Rotten == 0 || total.Loaded == 0 {
		t.Error("nothing was shown")
	}
}

// TestDeterminism plays seeds twice: equal seeds, equal traces.
func TestDeterminism(t *testing.T) {
	for s := range uint64(40) {
		a, b := sim.Run(sim.FromSeed(1000+s), sim.Options{}), sim.Run(sim.FromSeed(1000+s), sim.Options{})
		if a.Hash != b.Hash || a.Stats.Events != b.Stats.Events {
			t.Errorf("seed %d: hash %x after %d events, then %x after %d", 1000+s, a.Hash, a.Stats.Events, b.Hash, b.Stats.Events)
		}
	}
}

// TestPlanted proves that the judges see: each planted bug is found within a
// bounded number of seeds, and the same seed is clean without it.
func TestPlanted(t *testing.T) {
	const within = 200
	for _, tc := range []struct {
		name  string
		plant sim.Plant
		draw  func(uint64) sim.Scenario
	}{
		{"stage takes old items", sim.OldItems, sim.Storm},
		{"no barrier", sim.NoBarrier, sim.Storm},
		{"claims one position too many", sim.StartTooFar, sim.FromSeed},
		{"starts one position late", sim.StartUnchecked, sim.FromSeed},
		{"owner takes old steps", sim.OldSteps, sim.Storm},
		{"acknowledges rows before they are stored", sim.AckEarly, sim.FromSeed},
		{"truncates one position too few", sim.TruncateLess, sim.Pressure},
		{"reads rows one cell before their own", sim.RowsShifted, sim.FromSeed},
		{"finds copies by position", sim.MatchPosition, sim.FromSeed},
		{"names KV without its tenant", sim.Unsalted, sim.FromSeed},
		{"promises an epoch twice", sim.PromisedTwice, sim.Widows},
		{"an owner does not hear that it is superseded", sim.DeafOwner, sim.Widows},
		{"gives up the places of a load too early", sim.UnpinEarly, sim.Pressure},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			started := time.Now()
			for s := uint64(1); s <= within; s++ {
				r := sim.Run(tc.draw(s), sim.Options{Plant: tc.plant})
				if len(r.Violations) == 0 {
					continue
				}
				t.Logf("seed %d finds it (%v): %s", s, time.Since(started).Round(time.Millisecond), line(r.Violations[0]))
				if clean := sim.Run(tc.draw(s), sim.Options{}); len(clean.Violations) > 0 {
					t.Errorf("seed %d fails without the bug: %s", s, line(clean.Violations[0]))
				}
				return
			}
			t.Errorf("not found by %d seeds", within)
		})
	}
}

// TestCrowds: of sessions with one system prompt that come at once, few compute it: one for
// each first stage, and one more for a stage that is on no route of those, for which others
// do not wait where engines are slow. With faults they all end.
func TestCrowds(t *testing.T) {
	sessions, computed, runs := 0, 0, 0
	for s := range uint64(25) {
		sc := sim.Crowd(s + 1)
		r := sim.Run(sc, sim.Options{})
		for _, v := range r.Violations {
			t.Errorf("seed %d: %s", s+1, line(v))
		}
		if r.Stats.Finished != sc.Crowd {
			t.Errorf("seed %d: %d of %d sessions have finished after %v", s+1, r.Stats.Finished, sc.Crowd, r.Stats.CrowdTime)
		}
		if r.Stats.Computed > 2*sc.Copies {
			t.Logf("seed %d: %d of %d computed the %d tokens that all begin with (stages %d, a row %v, a batch %v)",
				s+1, r.Stats.Computed, sc.Crowd, sc.Opening, len(sc.Ranges), sc.BatchRow, sc.BatchFixed)
		}
		sessions, computed, runs = sessions+r.Stats.Crowd, computed+r.Stats.Computed, runs+1
		sc.Faults, sc.Kinds = 8, []sim.Kind{sim.Kill, sim.Freeze, sim.EngineKill, sim.EngineFreeze, sim.Block, sim.SlowEngine}
		for _, v := range sim.Run(sc, sim.Options{}).Violations {
			t.Errorf("seed %d with faults: %s", s+1, line(v))
		}
	}
	t.Logf("%d sessions in %d runs, %d computed what all begin with", sessions, runs, computed)
	if most := sessions / 8; computed > most { // nearly all would without waiting
		t.Errorf("%d sessions computed what all begin with, want at most %d", computed, most)
	}
}

func ExampleResult() {
	r := sim.Run(sim.FromSeed(7), sim.Options{})
	fmt.Println(len(r.Violations))
	// Output: 0
}
