package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"github.com/kevlard/kevlard/gpu/health"
	"github.com/kevlard/kevlard/model"
)

const gib = 1 << 30

func TestGPUBudget(t *testing.T) {
	for _, c := range []struct{ free, total, want int64 }{
		{0, 0, 0},                             // the driver does not tell
		{139 * gib, 141 * gib, 124.875 * gib}, // a tenth is left, and the rest is in steps
		{8 * gib, 8 * gib, 7 * gib},           // at least 1 GiB is left
		{3 * gib, 80 * gib, 0},                // others have it
		{gib, 8 * gib, 0},
		{gib + budgetStep, 8 * gib, budgetStep},
		{gib + budgetStep - 1, 8 * gib, 0},
	} {
		if got := (memory{c.free, c.total}).budget(); got != c.want {
			t.Errorf("%d free of %d: %d, want %d", c.free, c.total, got, c.want)
		}
	}
}

func TestBudgets(t *testing.T) {
	half := hostMemory() / 2
	for _, c := range []struct {
		name    string
		devices []string
		bytes   int
		gpus    []int64
		want    []int64
	}{
		{"nothing said", nil, 0, []int64{0}, []int64{half}},
		{"a GPU before it was read", []string{"cuda:0"}, 0, nil, []int64{0}},
		{"a GPU", []string{"cuda:0"}, 0, []int64{70 * gib}, []int64{70 * gib}},
		{"the host's memory is the CPU's alone", []string{"cuda:0", "cpu"}, 0, []int64{70 * gib, 0}, []int64{70 * gib, half}},
		{"two engines on the CPU", []string{"cpu", "cpu"}, 0, []int64{0, 0}, []int64{half / 2, half / 2}},
		{"said", []string{"cuda:0", "cuda:1"}, gib, []int64{70 * gib, 0}, []int64{gib, gib}},
	} {
		cfg := config.Defaults()
		cfg.Engine.Devices, cfg.Engine.MemoryBytes = c.devices, c.bytes
		if got := budgets(cfg, c.gpus); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestCellsFollowTheSmallestDevice: a stage has the same room for KV wherever it goes.
func TestCellsFollowTheSmallestDevice(t *testing.T) {
	m := &model.Manifest{Shape: model.Shape{Layers: 32, Context: 1 << 17, KVHeads: 8, HeadDim: 128}}
	row := m.KVRowBytes(rowValueBytes) * 8 // of the layers of a quarter
	cfg := config.Defaults()
	for _, c := range []struct {
		budgets []int64
		want    int
	}{
		{[]int64{120 * gib}, m.Context},
		{[]int64{120 * gib, 4 * gib}, 2 * gib / row},
		{[]int64{0, 4 * gib}, 2 * gib / row}, // a device of which nothing is known gets nothing
		{[]int64{0}, m.Context},              // others plan with what this node says, as with that of alike ones
	} {
		if got := cellsOf(cfg, c.budgets, m); got != c.want {
			t.Errorf("%v: %d cells, want %d", c.budgets, got, c.want)
		}
	}
}

// withMemory is a reading of GPUs of 80 GiB: 0 and 2 are whole, 1 is cut in two halves.
func withMemory(free ...int64) health.Reading {
	r := health.Reading{}
	for i, f := range free {
		d := health.Device{Index: i, UUID: "GPU-" + string(rune('a'+i)), Vendor: "nvidia", MemoryFree: f, MemoryTotal: 80 * gib, MemoryUsed: 80*gib - f}
		if i == 1 {
			d.MIG = true
			d.Instances = []health.Instance{{UUID: "MIG-1", MemoryFree: 39 * gib, MemoryTotal: 40 * gib}, {UUID: "MIG-2", MemoryFree: 20 * gib, MemoryTotal: 40 * gib}}
		}
		r.Devices = append(r.Devices, d)
	}
	return r
}

func gpusOf(visible string, devices ...string) *gpus {
	return &gpus{devices: devices, visible: visible, visibleSet: visible != "", log: slog.New(slog.DiscardHandler), most: map[string]memory{}}
}

// TestBudgetsOfGPUs: each configured device has the memory of the GPU, or the instance,
// that its engines see.
func TestBudgetsOfGPUs(t *testing.T) {
	r := withMemory(79*gib, 79*gib, 50*gib)
	for _, c := range []struct {
		name string
		g    *gpus
		want []int64
	}{
		{"all", gpusOf("", "cuda:0", "cuda:1", "cuda:2", "cuda:3"), []int64{71 * gib, 35 * gib, 16 * gib, 42 * gib}},
		{"the CPU has none of it", gpusOf("", "cpu", "cuda:0"), []int64{0, 71 * gib}},
		{"the order of the variable", gpusOf("2,0", "cuda:0", "cuda:1"), []int64{42 * gib, 71 * gib}},
		{"an instance", gpusOf("MIG-2", "cuda:0"), []int64{16 * gib}},
		{"one that is hidden", gpusOf("2", "cuda:0", "cuda:1"), []int64{42 * gib, 0}},
		{"twice the same", gpusOf("", "cuda:0", "cuda:0"), []int64{71 * gib / 2, 71 * gib / 2}},
		{"a bad variable", gpusOf("9", "cuda:0"), []int64{0}},
	} {
		changed := c.g.hear(r)
		if got := c.g.budgets(); !slices.Equal(got, c.want) || changed != (slices.Max(c.want) > 0) {
			t.Errorf("%s: %v, changed %t: want %v", c.name, got, changed, c.want)
		}
	}
}

// TestBudgetStays: what this node's own engines take is no reason for a smaller budget, and
// what others give back is one for a larger.
func TestBudgetStays(t *testing.T) {
	g := gpusOf("", "cuda:0")
	for i, c := range []struct {
		r       health.Reading
		want    int64
		changed bool
	}{
		{health.Reading{NoDriver: "not loaded"}, 0, false},
		{withMemory(40 * gib), 32 * gib, true},
		{withMemory(2 * gib), 32 * gib, false},   // an engine loads
		{withMemory(70*gib + 1), 62 * gib, true}, // another program has ended
		{health.Reading{Devices: []health.Device{{UUID: "GPU-a", Vendor: "nvidia", Lost: "it is lost"}}}, 62 * gib, false},
		{withMemory(30 * gib), 62 * gib, false},
	} {
		if changed := g.hear(c.r); changed != c.changed || g.budgets()[0] != c.want {
			t.Errorf("reading %d: %v, changed %t: want %d, %t", i, g.budgets(), changed, c.want, c.changed)
		}
	}
}

// TestMissing says what of the configured devices is not there.
func TestMissing(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "libggml-cuda.so"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	none := health.Reading{NoDriver: "NVIDIA's driver is not installed"}
	for _, c := range []struct {
		name     string
		g        *gpus
		backends string
		r        health.Reading
		planned  bool
		want     []string // none: nothing is missing
	}{
		{"the CPU", gpusOf("", ""), "", none, true, nil},
		{"no library is configured", gpusOf("", "cuda:0"), "", withMemory(70 * gib), true, []string{"cuda:0, and there is only cpu"}},
		{"no library is there", gpusOf("", "cuda:0"), t.TempDir(), withMemory(70 * gib), true, []string{"cuda:0: libggml-cuda.so is not in"}},
		{"all is there", gpusOf("", "cuda:0"), dir, withMemory(70 * gib), true, nil},
		{"one GPU too few", gpusOf("", "cuda:0", "cuda:1"), dir, withMemory(70 * gib), true, []string{"cuda:1, and this node may use 1 GPUs"}},
		{"two too few", gpusOf("", "cuda:1", "cuda:2"), dir, withMemory(70 * gib), false, []string{"cuda:1", "; ", "cuda:2"}},
		{"hidden", gpusOf("9", "cuda:0"), dir, withMemory(70 * gib), false, []string{`CUDA_VISIBLE_DEVICES is "9"`}},
		{"no driver", gpusOf("", "cuda:0"), dir, none, true, []string{"how much memory", "driver is not installed", "memory_bytes"}},
		{"no driver, and an engine that may know more", gpusOf("", "cuda:0"), dir, none, false, nil},
		{"it is full", gpusOf("", "cuda:0"), dir, withMemory(gib), true, []string{"no memory there that is free"}},
		{"it is full, and that is known", gpusOf("", "cuda:0"), dir, withMemory(gib), false, nil},
	} {
		c.g.backends = c.backends
		c.g.hear(c.r)
		got := c.g.missing(c.planned)
		if (got == "") != (c.want == nil) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		for _, says := range c.want {
			if !strings.Contains(got, says) {
				t.Errorf("%s: %q does not say %q", c.name, got, says)
			}
		}
	}
}

// TestNotRun: a node says what of its own configuration nobody has run, and no more.
func TestNotRun(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*config.Config)
		want []string // a word of each
	}{
		"as it comes":            {func(*config.Config) {}, nil},
		"the CPU":                {func(c *config.Config) { c.Engine.Devices, c.KV.Standby = []string{"cpu"}, config.StandbyHot }, nil},
		"a GPU":                  {func(c *config.Config) { c.Engine.Devices = []string{"cpu", "cuda:1"} }, []string{"CUDA", "NVML"}},
		"hot copies":             {func(c *config.Config) { c.Engine.Devices, c.KV.Standby = []string{"cuda:0"}, config.StandbyHot }, []string{"CUDA", "NVML", "hot"}},
		"RDMA":                   {func(c *config.Config) { c.Mesh.Transport = config.TransportRDMA }, []string{"RDMA"}},
		"RDMA, if it can be had": {func(c *config.Config) { c.Mesh.Plain = true }, []string{"RDMA"}},
		"no RDMA":                {func(c *config.Config) { c.Mesh.Transport, c.Mesh.Plain = config.TransportTCP, true }, nil},
	} {
		cfg := config.Defaults()
		c.edit(&cfg)
		got := notRun(cfg)
		if len(got) != len(c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
			continue
		}
		for i, word := range c.want {
			if !strings.Contains(got[i], word) {
				t.Errorf("%s: %q, want %q", name, got[i], word)
			}
		}
	}
}
