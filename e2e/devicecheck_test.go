package e2e

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kevlard/kevlard/internal/devmesh"
)

// TestDeviceCheck rehearses scripts/device-check.sh without a GPU: every row is there, and
// what it did not run is not called passed.
func TestDeviceCheck(t *testing.T) {
	base, err := devmesh.FreeBase(devmesh.DefaultBasePort, 8)
	if err != nil {
		t.Fatal(err)
	}
	// The limit is for a machine that hangs, not for a slow one.
	cmd := exec.CommandContext(t.Context(), "../scripts/device-check.sh", "--device", "cpu", "--kevlard", kevlardBin,
		"--tokens", "300", "--base-port", strconv.Itoa(base), "--limit", "3600")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it stops its mesh
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, said.String())
	}
	for _, want := range [][2]string{
		{"backend", "no GPU"},
		{"driver", "no GPU"},
		{"serve 4 stages", "pass     8 of 8 engines on cpu"},
		{"unbroken stream", "pass     300 tokens"},
		{"speed", "pass"},
		{"engine killed", "pass     engine of node-"},
		{"token-exact", "pass     300 tokens equal"},
		{"device memory", "no GPU"},
		{"KV copies", "pass     2048 cells"},
		{"time", "pass"},
	} {
		if n := strings.Count(string(out), "\n"+want[0]+strings.Repeat(" ", 19-len(want[0]))+want[1]); n != 1 {
			t.Errorf("%d rows %q with %q in\n%s", n, want[0], want[1], out)
		}
	}
	if !strings.Contains(string(out), "a rehearsal, which says nothing about one") {
		t.Errorf("it does not say that it was a rehearsal:\n%s", out)
	}
}

// TestDeviceCheckNoGPU: where a GPU was asked for and no library can be built, nothing
// passes, and the CPU does not stand in.
func TestDeviceCheckNoGPU(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "../scripts/device-check.sh", "--kevlard", kevlardBin, "--sources", t.TempDir())
	out, err := cmd.Output()
	if err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"\nbackend            FAILED ", "\ntoken-exact        not run  there is no backend library", "\nKV copies          not run ", "\n9 rows FAILED or were not run"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}
