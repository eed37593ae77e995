package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kevlard/kevlard/internal/ringbench"
)

// TestBenchRing runs a very small ring with memberlist's settings beside ours: the
// fields are there.
func TestBenchRing(t *testing.T) {
	r := program(t, nil, "", "bench", "ring", "--nodes", "3", "--kills", "1", "--idle", "10s", "--soak", "10s", "-o", "json")
	var got struct {
		Results []struct {
			Settings string
			Clock    string
			Members  int
			False    *uint64                    `json:"false_deaths"`
			Packets  float64                    `json:"packets_per_node_s"`
			First    struct{ P50, P99 float64 } `json:"first_ms"`
			Derived  struct{ P50, P99 float64 } `json:"derived_first_ms"`
		}
	}
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || r.code != 0 || len(got.Results) != 2 {
		t.Fatalf("exit %d: %v: %s: %s", r.code, err, r.stderr, r.stdout)
	}
	for _, x := range got.Results {
		if x.Members != 3 || x.Clock != "virtual" || x.False == nil || x.Packets <= 0 || x.First.P50 <= 0 || x.First.P99 < x.First.P50 || x.Derived.P99 <= x.Derived.P50 {
			t.Errorf("got %+v", x)
		}
	}
}

func TestBenchRingFlags(t *testing.T) {
	for _, bad := range [][]string{{"--nodes", "2"}, {"--kills", "0"}, {"--loss", "80"}, {"--profile", "fast"}, {"--soak", "-1s"}, {"--clock", "wall"}, {"--limit", "-1s"}, {"extra"}} {
		if r := program(t, nil, "", append([]string{"bench", "ring"}, bad...)...); r.code != 2 {
			t.Errorf("%v: exit %d, want 2: %s", bad, r.code, r.stderr)
		}
	}
}

// TestBenchRingStarved: false deaths of a machine that was too slow are not shown.
func TestBenchRingStarved(t *testing.T) {
	var out strings.Builder
	none := uint64(0)
	r := ringReport{Results: []ringbench.Result{{Settings: "lan", Clock: "real", Starved: true}, {Settings: "memberlist", Clock: "virtual", FalseDeaths: &none, LossFalseDeaths: &none}}}
	if err := ringTable(r).write(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	at := strings.Index(lines[0], "FALSE DEATHS")
	if !strings.HasPrefix(lines[1][at:], "-  ") || !strings.HasPrefix(lines[2][at:], "0  ") {
		t.Errorf("false deaths of a starved and of a good run:\n%s", out.String())
	}
}
