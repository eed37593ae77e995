package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kevlard/kevlard/api"
)

// TestRecordedXids is K21 with a real daemon, whose GPU is a recording: the kernel lines of a
// failing one make it drain, say why, and count; application errors do not. That sessions
// move then is tested with daemons in one process (TestSickDevice).
func TestRecordedXids(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gpus.jsonl")
	add := func(kernel ...string) {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		lines := ""
		if len(kernel) > 0 {
			lines = `,"kernel":["` + strings.Join(kernel, `","`) + `"]`
		}
		if _, err := fmt.Fprintf(f, `{"devices":[{"index":0,"uuid":"GPU-0","name":"NVIDIA H200","vendor":"nvidia","pci":"0000:3b:00.0","temperature":50,"slowdown":87}]%s}`+"\n", lines); err != nil {
			t.Fatal(err)
		}
	}
	add("NVRM: Xid (PCI:0000:3b:00): 13, pid=1, name=a, Graphics Exception", "NVRM: Xid (PCI:0000:3b:00): 43, pid=1, name=a, Ch 8")
	t.Setenv("KEVLARD_GPU_RECORDING", path)
	s := newSingle(t, "gpu")
	s.holds(t, 0, 8, nil)
	s.start(t)
	s.up(t)
	client := api.NewClient(s.socket())
	eventually(t, readyWithin, func() error {
		st, err := client.Status(t.Context())
		if err != nil {
			return err
		}
		if !st.Ready || len(st.GPUs) != 1 || st.GPUs[0].State != "ok" {
			return fmt.Errorf("ready %t (%s), GPUs %+v", st.Ready, st.Reason, st.GPUs)
		}
		return nil
	})
	add("NVRM: Xid (PCI:0000:3b:00): 48, pid=1, name=a, DBE", "NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper: New row marked for remapping, reset gpu to activate.",
		"NVRM: Xid (PCI:0000:3b:00): 94, Contained error", "NVRM: Xid (PCI:0000:3b:00): 171, Uncorrectable DRAM error",
		"NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
	eventually(t, readyWithin, func() error {
		st, err := client.Status(t.Context())
		if err != nil {
			return err
		}
		if !st.Draining || !strings.Contains(st.Reason, "Xid 48") || len(st.Problems) == 0 || !strings.Contains(st.Problems[0].What, "drains itself") {
			return fmt.Errorf("draining %t, %q, %+v", st.Draining, st.Reason, st.Problems)
		}
		return nil
	})
	out, _, code := kevlard(t, "--control", s.socket(), "status", "--check")
	if code != 1 || !strings.Contains(out, "Xid 48") {
		t.Errorf("status --check exits %d: %s", code, out)
	}
	out, _, _ = kevlard(t, "--control", s.socket(), "events", "-o", "json")
	for _, want := range []string{`"xid-13"`, `"xid-48"`, `"xid-171"`, `"xid-154"`, `"gpu-drain"`} {
		if !strings.Contains(out, want) {
			t.Errorf("events lack %s: %s", want, out)
		}
	}
	s.stop(t)
}
