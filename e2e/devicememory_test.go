package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kevlard/kevlard/daemon/report"
)

// fakeGPUs builds the libraries that stand in for a GPU's backend and for its driver, whose
// GPUs have 8 GiB each. It returns the first one's directory, the second one's, and the file
// whose letters break the driver.
func fakeGPUs(t *testing.T) (backend, driver, state string) {
	t.Helper()
	backend, driver = t.TempDir(), t.TempDir()
	state = filepath.Join(driver, "state")
	system(t, "../engine/testdata/fakegpu.sh", backend)
	system(t, "cc", "-shared", "-fPIC", "-O1", `-DSTATE="`+state+`"`, "-DTOTAL=(8ull<<30)", "-DFREE=(7ull<<30)",
		"-o", filepath.Join(driver, "libnvidia-ml.so.1"), "../gpu/testdata/fakenvml.c")
	return backend, driver, state
}

// TestDeviceMemory: the plan counts with the memory of the GPU that stages go to, whatever
// the host has. While the driver is not there, or nothing of that memory is free, the host
// takes no stage, and says why (K77); what [engine] memory_bytes says counts more. Engines
// see that GPU, or that MIG instance, alone.
func TestDeviceMemory(t *testing.T) {
	backend, driver, state := fakeGPUs(t)
	breaks := func(letters string) {
		if err := os.WriteFile(state, []byte(letters), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := newSingle(t, "gpu")
	s.isGiven(t)
	s.set("engine", "devices", []string{"cuda:0"})
	s.set("engine", "backend_dir", backend)
	s.env = []string{"LD_LIBRARY_PATH=" + driver}
	serves := func(visible string) {
		t.Helper()
		client := s.up(t)
		var st report.Status
		eventually(t, readyWithin, func() (err error) {
			if st, err = client.Status(t.Context()); err == nil && (!st.Ready || len(st.Engines) == 0) {
				err = errors.New(st.Reason)
			}
			return err
		})
		for _, e := range st.Engines {
			env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", e.PID))
			if err != nil || e.Device != "cuda:0" || !bytes.Contains(env, []byte("\x00CUDA_VISIBLE_DEVICES="+visible+"\x00")) {
				t.Errorf("engine %+v, %v: want it on cuda:0, where it sees %s", e, err, visible)
			}
		}
		if st.Reason != "" || len(st.NotRun) == 0 {
			t.Errorf("%+v", st)
		}
	}

	waits := func(why string) {
		t.Helper()
		client := s.up(t)
		eventually(t, readyWithin, func() error {
			st, err := client.Status(t.Context())
			switch {
			case err != nil:
				return err
			case len(st.Engines)+len(st.Stages) > 0:
				t.Fatalf("it takes stages: %+v", st)
			case st.Ready || !strings.HasPrefix(st.Reason, why) || len(st.Problems) == 0 || !strings.HasPrefix(st.Problems[0].What, why):
				return fmt.Errorf("the reason is %q, the problems %+v", st.Reason, st.Problems)
			}
			return nil
		})
	}

	lib := filepath.Join(driver, "libnvidia-ml.so.1")
	if err := os.Rename(lib, lib+".late"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(lib, []byte("cut"), 0o600); err != nil { // before the system's, if it has one
		t.Fatal(err)
	}
	breaks("F")
	s.start(t)
	waits("[engine] devices asks for cuda:0, and nothing says how much memory it has: NVIDIA's driver is not installed")
	if err := os.Rename(lib+".late", lib); err != nil {
		t.Fatal(err)
	}
	const why = "[engine] devices asks for cuda:0, and the driver tells of no memory there that is free"
	waits(why)
	t.Setenv("LD_LIBRARY_PATH", driver) // for doctor, which looks for itself
	for verb, code := range map[string]int{"status": 0, "members": 0, "doctor": 1} {
		args := []string{"--control", s.socket(), verb}
		if verb == "doctor" {
			args = append(args, "--config", s.config(t))
		}
		out, errs, got := kevlard(t, args...)
		if got != code || !strings.Contains(out, why) {
			t.Errorf("%s exits %d: %s%s", verb, got, out, errs)
		}
	}
	breaks("")
	serves("GPU-0")
	s.stop(t)

	s.env = append(s.env, "CUDA_VISIBLE_DEVICES=MIG-2")
	s.start(t)
	serves("MIG-2")
	s.stop(t)

	breaks("F")
	s.set("engine", "memory_bytes", 4<<30)
	s.start(t)
	serves("MIG-2")
	s.stop(t)
}
