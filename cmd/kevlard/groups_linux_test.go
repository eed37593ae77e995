package main

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// TestGroups reads both versions of control groups: the least of a group and of those
// above it counts.
func TestGroups(t *testing.T) {
	const none = math.MaxInt64
	for _, c := range []struct {
		name, proc    string
		files         map[string]string
		memory, tasks int64
		cpus          float64
	}{
		{"two", "0::/a/b\n", map[string]string{"a/memory.max": "1000\n", "a/b/memory.max": "max\n"}, 1000, none, 0},
		{"two, the inner", "0::/a/b\n", map[string]string{
			"a/memory.max": "1000\n", "a/b/memory.max": "900\n", "a/pids.max": "70\n", "a/b/pids.max": "max\n",
			"a/cpu.max": "max 100000\n", "a/b/cpu.max": "150000 100000\n",
		}, 900, 70, 1.5},
		{"two, the outer", "0::/a/b\n", map[string]string{"a/cpu.max": "50000 100000\n", "a/b/cpu.max": "150000 100000\n"}, none, none, 0.5},
		{"one", "5:cpu,cpuacct:/x\n4:memory,foo:/a\n3:pids:/p\n", map[string]string{
			"memory/a/memory.limit_in_bytes": "700\n", "memory/x/memory.limit_in_bytes": "1\n", "pids/p/pids.max": "80\n",
			"cpu/x/cpu.cfs_quota_us": "20000\n", "cpu/x/cpu.cfs_period_us": "10000\n",
		}, 700, 80, 2},
		{"one, no limits", "5:cpu:/x\n4:memory:/x\n3:pids:/x\n", map[string]string{
			"memory/x/memory.limit_in_bytes": "9223372036854771712\n", "pids/x/pids.max": "max\n",
			"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n",
		}, none, none, 0},
		{"none", "0::/\n", map[string]string{}, none, none, 0},
		{"no numbers", "0::/a\nnonsense\n", map[string]string{"a/memory.max": "x\n", "a/cpu.max": "x\n"}, none, none, 0},
	} {
		dir := t.TempDir()
		c.files["proc"] = c.proc
		for name, text := range c.files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		proc := filepath.Join(dir, "proc")
		memory, tasks, cpus := groupMemory(proc, dir), groupTasks(proc, dir), groupCPUs(proc, dir)
		if memory != c.memory || tasks != c.tasks || cpus != c.cpus {
			t.Errorf("%s: %d bytes, %d threads, %v CPUs, want %d, %d, %v", c.name, memory, tasks, cpus, c.memory, c.tasks, c.cpus)
		}
	}
}
