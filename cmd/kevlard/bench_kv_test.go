package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestBenchKV runs the smallest possible measurement: the fields are there, and real KV
// was compressed; what the figures are says nothing here.
func TestBenchKV(t *testing.T) {
	args := []string{"bench", "kv", "--sizes", "1024,300000", "--repeat", "1", "--each", "5ms", "--conns", "2"}
	r := program(t, nil, "", append(args, "-o", "json")...)
	if r.code != 0 {
		t.Fatalf("exit %d: %s", r.code, r.stderr)
	}
	var got struct {
		Results []struct {
			Transport string   `json:"transport"`
			Piece     int      `json:"piece_bytes"`
			Speed     *float64 `json:"gbytes_s"`
			Ceiling   *float64 `json:"ceiling_gbytes_s"`
			Ratio     *float64 `json:"ratio"`
			CPU       *float64 `json:"cpu_s_per_gb"`
		} `json:"results"`
		Memcpy float64 `json:"memcpy_gbytes_s"`
		Ratio  float64 `json:"compression_ratio"`
		RDMA   string  `json:"rdma"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		t.Fatal(err)
	}
	want := []string{"tcp-tls", "tcp-tls", "tcp-plain", "tcp-plain"}
	if got.RDMA == "" { // there is a device
		want = append(want, "rdma", "rdma")
	}
	if len(got.Results) != len(want) || got.Memcpy <= 0 || got.Ratio < 1.1 {
		t.Fatalf("got %+v", got)
	}
	for i, v := range got.Results {
		if v.Transport != want[i] || v.Piece != []int{1024, 300000}[i%2] || v.Speed == nil || v.Ceiling == nil || v.Ratio == nil || v.CPU == nil {
			t.Errorf("result %d: %+v", i, v)
		}
	}
	r = program(t, nil, "", append(args, "--summed")...)
	for _, want := range []string{"\nrdma", "TRANSPORT", "tcp-plain  293.0 KiB", "memcpy of one core", "bundled model, float32", "Llama 3.1 8B"} {
		if r.code != 0 || !strings.Contains(r.stdout, want) {
			t.Errorf("exit %d, no %q in\n%s", r.code, want, r.stdout)
		}
	}
}
