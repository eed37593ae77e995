package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestBenchCells copies KV out of a real engine and back. On a device that is not there
// nothing is measured, on the CPU least of all.
func TestBenchCells(t *testing.T) {
	t.Setenv(asProgram, "1") // for the engine, which is this program again
	args := []string{"bench", "cells", "--model", "../../model/fairy/fairy-7m-q8_0.gguf", "--cells", "300", "--each", "1ms", "-o", "json"}
	r := program(t, nil, "", args...)
	var got cellsReport
	if r.code != 0 || json.Unmarshal([]byte(r.stdout), &got) != nil {
		t.Fatalf("exit %d: %s%s", r.code, r.stdout, r.stderr)
	}
	if got.Device != "cpu" || got.CellBytes < 1 || got.CopyBytes != 300*got.CellBytes || got.Export <= 0 || got.Import <= 0 {
		t.Errorf("got %+v", got)
	}
	for want, more := range map[string][]string{
		"there is only cpu": {"--device", "cuda:0"},
		"libggml-cuda.so is not in [engine] backend_dir": {"--device", "cuda:0", "--backend-dir", t.TempDir()},
		"flag --cells is 0: want 1 to 65536":             {"--cells", "0"},
	} {
		r := program(t, nil, "", append(args[:len(args):len(args)], more...)...)
		if r.code == 0 || r.stdout != "" || !strings.Contains(r.stderr, want) {
			t.Errorf("%v: exit %d: %s%s", more, r.code, r.stdout, r.stderr)
		}
	}
}
