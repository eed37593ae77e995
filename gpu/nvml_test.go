//go:build cgo && linux

package gpu

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard/gpu/health"
)

// asked is the variable with which this test binary asks a fake library and writes what it
// found: C binds a symbol once in the life of a process.
const asked = "KEVLARD_TEST_NVML"

// fakeNVML builds the library, and returns its path and that of the file that breaks it.
func fakeNVML(t *testing.T, flags ...string) (lib, state string) {
	t.Helper()
	dir := t.TempDir()
	lib, state = filepath.Join(dir, "libnvidia-ml.so.1"), filepath.Join(dir, "state")
	args := append([]string{"-shared", "-fPIC", "-O1", `-DSTATE="` + state + `"`, "-o", lib, "testdata/fakenvml.c"}, flags...)
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v: %s", err, out)
	}
	return lib, state
}

// again runs one test of this binary in a process of its own.
func again(t *testing.T, env ...string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestNVML(t *testing.T) {
	lib := os.Getenv(asked)
	if lib == "" {
		lib, _ := fakeNVML(t)
		again(t, asked+"="+lib)
		return
	}
	h := Look(Options{Root: t.TempDir(), Library: lib})
	if h.NVML != nil || h.Driver != "575.57.08" {
		t.Fatalf("%v, driver %q", h.NVML, h.Driver)
	}
	want := []health.Device{
		{
			Index: 0, UUID: "GPU-0", Name: "NVIDIA H200", Vendor: "nvidia", PCI: "0000:3b:00.0", MemoryTotal: 1000, MemoryFree: 600, MemoryUsed: 400, Temperature: 50, Slowdown: 87, Shutdown: 92,
			Throttle: []string{health.ThrottleThermal, health.ThrottleBrake, health.ThrottlePower}, ECCVolatile: 2, ECCAggregate: 7, Pending: true, Persistence: true,
		},
		{
			Index: 1, UUID: "GPU-1", Name: "NVIDIA H200", Vendor: "nvidia", PCI: "0000:5e:00.0", MemoryTotal: 1000, MemoryFree: 600, MemoryUsed: 400, Temperature: 51, Slowdown: 87, Shutdown: 92,
			ECCVolatile: 2, ECCAggregate: 7, Persistence: true, MIG: true,
			Instances: []health.Instance{{UUID: "MIG-1", Name: "NVIDIA H200 MIG 3g.71gb", MemoryFree: 300, MemoryTotal: 500}, {UUID: "MIG-2", Name: "NVIDIA H200 MIG 3g.71gb", MemoryFree: 300, MemoryTotal: 500}},
		},
	}
	if !reflect.DeepEqual(h.Devices, want) {
		got, _ := json.Marshal(h.Devices)
		t.Errorf("%s", got)
	}
	targets, err := Targets(h.Devices, "", false)
	var names []string
	for _, x := range targets {
		names = append(names, x.Visible)
	}
	if err != nil || !slices.Equal(names, []string{"GPU-0", "MIG-1", "MIG-2"}) {
		t.Errorf("offered: %v, %v: a GPU that is cut must not be", names, err)
	}
}

// TestOldNVML: functions that a driver does not have are not called, which would end the
// process.
func TestOldNVML(t *testing.T) {
	lib := os.Getenv(asked)
	if lib == "" {
		lib, _ := fakeNVML(t, "-DOLD")
		again(t, asked+"="+lib)
		return
	}
	h := Look(Options{Root: t.TempDir(), Library: lib})
	if h.NVML != nil || len(h.Devices) != 2 || h.Devices[0].Temperature != 50 || h.Devices[0].Slowdown != 0 || !slices.Equal(h.Devices[0].Throttle, []string{health.ThrottleThermal}) {
		t.Errorf("%v, %+v", h.NVML, h.Devices)
	}
}

// watching runs Watch and hands out its readings.
func watching(t *testing.T, o Options) (next func() health.Reading) {
	ctx, cancel := context.WithCancel(t.Context())
	readings := make(chan health.Reading)
	ended := make(chan error, 1)
	go func() {
		ended <- Watch(ctx, o, func(r health.Reading) {
			select {
			case readings <- r:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func() health.Reading { return <-readings }
}

func TestWatchNVML(t *testing.T) {
	lib, state := os.Getenv(asked), os.Getenv(asked+"_STATE")
	if lib == "" {
		lib, state := fakeNVML(t)
		again(t, asked+"="+lib, asked+"_STATE="+state)
		return
	}
	breaks := func(letters string) {
		if err := os.WriteFile(state+".new", []byte(letters), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(state+".new", state); err != nil {
			t.Fatal(err)
		}
	}
	next := watching(t, Options{Root: t.TempDir(), Library: lib, Every: time.Millisecond, Stuck: 50 * time.Millisecond})
	r := next()
	for r.NoDriver != "" { // the library takes longer to be loaded than a driver may to answer
		r = next()
	}
	if len(r.Devices) != 2 || r.Devices[0].Lost != "" {
		t.Fatalf("%+v", r)
	}
	breaks("X") // there is no kernel log: NVML's events tell of it
	for {
		r := next()
		if len(r.Xids) == 0 {
			continue
		}
		if !slices.Equal(r.Xids, []health.Xid{{PCI: "0000:3b:00", Code: 48}}) {
			t.Errorf("%+v", r.Xids)
		}
		break
	}
	breaks("L")
	for next().Devices[0].Lost != "the GPU is lost" {
	}
	breaks("H") // a driver that does not answer must not keep anything from ending
	for !strings.Contains(next().Devices[1].Lost, "has not answered") {
	}
	breaks("")
	for next().Devices[1].Lost != "" {
	}
	breaks("H")
	for !strings.Contains(next().Devices[0].Lost, "has not answered") {
	}
}

func TestNoNVML(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	h := Look(Options{Root: t.TempDir(), Library: missing})
	if !errors.Is(h.NVML, ErrNoDriver) || !strings.Contains(h.NVML.Error(), missing) || len(h.Devices) != 0 {
		t.Errorf("%v, %+v", h.NVML, h.Devices)
	}
	next := watching(t, Options{Root: t.TempDir(), Library: missing, Every: time.Millisecond, Stuck: time.Minute})
	for range 3 {
		if r := next(); len(r.Devices) != 0 || len(r.Xids) != 0 || !strings.Contains(r.NoDriver, missing) {
			t.Errorf("%+v", r)
		}
	}
}
