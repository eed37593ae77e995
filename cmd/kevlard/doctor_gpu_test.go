package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/gpu"
	"github.com/kevlard/kevlard/gpu/health"
)

// TestDoctorGPUs breaks each thing that a host with GPUs needs.
func TestDoctorGPUs(t *testing.T) {
	library := func(source string) string {
		dir := t.TempDir()
		cmd := exec.Command("cc", "-shared", "-fPIC", "-o", filepath.Join(dir, "libggml-cuda.so"), "-xc", "-")
		cmd.Stdin = strings.NewReader(source)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return dir
	}
	dir := library("void *ggml_backend_init(void) { return 0; }")
	type host struct {
		devices []string
		backend string
		found   gpu.Host
		bytes   int // [engine] memory_bytes
		engines []report.Engine
		visible string
		set     bool
	}
	well := func() host {
		h := host{devices: []string{"cuda:0", "cpu"}, backend: dir}
		h.found.Driver = "575.57.08"
		h.found.Devices = []health.Device{{UUID: "GPU-0", Vendor: "nvidia", PCI: "0000:3b:00.0", Persistence: true, MemoryFree: 70 << 30, MemoryTotal: 80 << 30}}
		return h
	}
	for _, c := range []struct {
		name   string
		edit   func(*host)
		status string // the worst of all
		check  string // that finds it
		says   string
	}{
		{"well", func(*host) {}, statusOK, "gpu-devices", "cuda:0 is GPU-0"},
		{"no driver", func(h *host) { h.found = gpu.Host{NVML: gpu.ErrNoDriver} }, statusFail, "gpu", "cuda:0"},
		{"a driver that fails", func(h *host) { h.found = gpu.Host{NVML: errors.New("the kernel module is not loaded")} }, statusFail, "gpu", "not loaded"},
		{"that nobody needs", func(h *host) {
			h.found, h.devices = gpu.Host{NVML: errors.New("the kernel module is not loaded")}, nil
		}, statusWarn, "gpu", "none is configured"},
		{"no backend_dir", func(h *host) { h.backend = "" }, statusFail, "backend", "backend_dir is not set"},
		{"no library", func(h *host) { h.backend = filepath.Join(dir, "none") }, statusFail, "backend", "libggml-cuda.so"},
		{"a library of something else", func(h *host) { h.backend = library("int x;") }, statusFail, "backend", "no backend library of ggml"},
		{"a library of other sources", func(h *host) {
			h.backend = library("void *ggml_of_another_version(void); void *ggml_backend_init(void) { return ggml_of_another_version(); }")
		}, statusFail, "backend", "which lacks ggml_of_another_version"},
		{"one GPU too few", func(h *host) { h.devices = []string{"cuda:1"} }, statusFail, "gpu-devices", "1 GPUs may be used"},
		{"hidden", func(h *host) { h.set = true }, statusFail, "gpu-devices", "0 GPUs may be used"},
		{"a bad variable", func(h *host) { h.visible, h.set = "GPU-9", true }, statusFail, "gpu-devices", "GPU-9"},
		{"memory_bytes for a larger one", func(h *host) { h.bytes = 90 << 30 }, statusFail, "gpu-devices", "memory_bytes is 90.0 GiB"},
		{"memory_bytes that it has", func(h *host) { h.bytes = 75 << 30 }, statusOK, "gpu-devices", "70.0 GiB of 80.0 GiB free"},
		{"a full one", func(h *host) { h.found.Devices[0].MemoryFree = 1 << 30 }, statusFail, "gpu-devices", "no room for a stage"},
		{"one that the daemon has filled", func(h *host) {
			h.found.Devices[0].MemoryFree, h.engines = 1<<30, []report.Engine{{Device: "cuda:0"}}
		}, statusOK, "gpu-devices", "1.0 GiB of 80.0 GiB free"},
		{"lost", func(h *host) { h.found.Devices[0].Lost = "the GPU is lost" }, statusFail, "gpu-health", "lost"},
		{"remap failed", func(h *host) { h.found.Devices[0].RemapFailed = true }, statusFail, "gpu-health", "could not"},
		{"pending", func(h *host) { h.found.Devices[0].Pending = true }, statusWarn, "gpu-health", "wait for a reset"},
		{"no persistence", func(h *host) { h.found.Devices[0].Persistence = false }, statusWarn, "gpu-health", "persistence"},
		{"cut and no instance", func(h *host) { h.found.Devices[0].MIG = true }, statusFail, "gpu-health", "MIG"},
		{"Xid 48", func(h *host) {
			h.found.Xids = []health.Xid{{PCI: "0000:3b:00", Code: 48}, {PCI: "0000:3b:00", Code: 13}}
		}, statusFail, "xids", "Xid 48"},
		{"Xid 63", func(h *host) { h.found.Xids = []health.Xid{{PCI: "0000:3b:00", Code: 63}} }, statusWarn, "xids", "Xid 63"},
		{"Xid 13", func(h *host) { h.found.Xids = []health.Xid{{PCI: "0000:3b:00", Code: 13}} }, statusOK, "xids", "1 in all"},
		{"no kernel log", func(h *host) { h.found.Kernel = os.ErrPermission }, statusWarn, "xids", "can't be read"},
	} {
		h := well()
		c.edit(&h)
		d := wellDoctor()
		d.cfg.Engine.Devices, d.cfg.Engine.BackendDir = h.devices, h.backend
		d.cfg.Engine.MemoryBytes, d.cfg.Models.Assign = h.bytes, nil
		d.status.Engines = h.engines
		d.probe.gpus = func() gpu.Host { return h.found }
		d.probe.program = os.Args[0]
		d.probe.visible = func() (string, bool) { return h.visible, h.set }
		worst, found := statusOK, false
		for _, f := range d.checkGPUs(t.Context()) {
			if f.Status == statusFail || f.Status == statusWarn && worst == statusOK {
				worst = f.Status
			}
			if (f.Status != statusOK) != (f.Fix != "") {
				t.Errorf("%s: %+v: want a fix if and only if it is not ok", c.name, f)
			}
			found = found || f.Check == c.check && strings.Contains(f.What, c.says)
		}
		if worst != c.status || !found {
			t.Errorf("%s: %s, %+v: want %s, and %s to say %q", c.name, worst, d.checkGPUs(t.Context()), c.status, c.check, c.says)
		}
	}
}

// TestDoctorGPUMemoryIsNotTheHosts: what is granted of a GPU's memory is none of the control
// group's.
func TestDoctorGPUMemoryIsNotTheHosts(t *testing.T) {
	for devices, want := range map[string]string{"cuda:0": statusOK, "cuda:0,cpu": statusFail} {
		d := wellDoctor()
		d.cfg.Engine.Devices, d.cfg.Engine.MemoryBytes = strings.Split(devices, ","), 70<<30
		spoilGroups(d, func(l *groupLimits) { l.memory = 64 << 30 })
		if f := d.checkMemory(t.Context()); len(f) != 1 || f[0].Status != want {
			t.Errorf("%s: %+v, want %s", devices, f, want)
		}
	}
}
