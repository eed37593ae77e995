package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestBenchRoute runs a short measurement: the fields are there; how fast it is says
// nothing here.
func TestBenchRoute(t *testing.T) {
	args := []string{"bench", "route", "--each", "1ms", "--sessions", "500"}
	r := program(t, nil, "", append(args, "-o", "json")...)
	var got struct {
		Nodes    int  `json:"nodes"`
		Sessions int  `json:"sessions"`
		NS       int  `json:"ns_per_decision"`
		Allocs   *int `json:"allocs"`
		Scaling  []struct {
			Nodes int `json:"nodes"`
			NS    int `json:"ns_per_decision"`
		} `json:"scaling"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || r.code != 0 {
		t.Fatalf("exit %d: %v: %s", r.code, err, r.stderr)
	}
	if got.Nodes != 64 || got.Sessions != 500 || got.NS <= 0 || got.Allocs == nil || *got.Allocs != 0 || len(got.Scaling) == 0 {
		t.Errorf("got %s", r.stdout)
	}
	thousand := false
	for _, s := range got.Scaling {
		thousand = thousand || s.Nodes == 1000 && s.NS > 0
	}
	if !thousand {
		t.Errorf("no 1000 nodes in %s", r.stdout)
	}
	if r := program(t, nil, "", args...); r.code != 0 || !strings.Contains(r.stdout, "NS/DECISION") || !strings.Contains(r.stdout, "0 allocations") {
		t.Errorf("exit %d: %s%s", r.code, r.stdout, r.stderr)
	}
	for _, bad := range [][]string{{"--nodes", "3"}, {"--sessions", "0"}, {"--each", "0s"}, {"extra"}} {
		if r := program(t, nil, "", append([]string{"bench", "route"}, bad...)...); r.code != 2 {
			t.Errorf("%v: exit %d, want 2", bad, r.code)
		}
	}
}
