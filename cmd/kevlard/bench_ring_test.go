package main

import (
	"encoding/json"
	"testing"
)

// TestBenchRing runs a very small ring with memberlist's settings beside ours: the
// fields are there. How soon a death is seen says nothing on a busy machine.
func TestBenchRing(t *testing.T) {
	r := program(t, nil, "", "bench", "ring", "--nodes", "3", "--kills", "1", "--idle", "0s", "--soak", "0s", "-o", "json")
	var got struct {
		Results []struct {
			Settings string
			Members  int
			First    struct{ P50, P99 float64 } `json:"first_ms"`
			Derived  struct{ P50, P99 float64 } `json:"derived_first_ms"`
		}
	}
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || r.code != 0 || len(got.Results) != 2 {
		t.Fatalf("exit %d: %v: %s: %s", r.code, err, r.stderr, r.stdout)
	}
	for _, x := range got.Results {
		if x.Members != 3 || x.First.P50 <= 0 || x.First.P99 < x.First.P50 || x.Derived.P99 <= x.Derived.P50 {
			t.Errorf("got %+v", x)
		}
	}
}

func TestBenchRingFlags(t *testing.T) {
	for _, bad := range [][]string{{"--nodes", "2"}, {"--kills", "0"}, {"--loss", "80"}, {"--profile", "fast"}, {"--soak", "-1s"}, {"extra"}} {
		if r := program(t, nil, "", append([]string{"bench", "ring"}, bad...)...); r.code != 2 {
			t.Errorf("%v: exit %d, want 2: %s", bad, r.code, r.stderr)
		}
	}
}
