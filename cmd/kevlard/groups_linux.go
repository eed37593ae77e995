package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// groupMount is where control groups are mounted.
const groupMount = "/sys/fs/cgroup"

// unlimited is below what version 1 says where there is no limit: all the pages that an
// int64 can count.
const unlimited = 1 << 62

// processGroups returns the limits of the control groups that a process is in (0: this
// one).
func processGroups(pid int) (groupLimits, error) {
	path := "/proc/self/cgroup"
	if pid != 0 {
		path = fmt.Sprintf("/proc/%d/cgroup", pid)
	}
	if _, err := os.Stat(path); err != nil {
		return groupLimits{}, fmt.Errorf("read the control group of process %d: %w", pid, err)
	}
	return groupLimits{
		memory: groupMemory(path, groupMount), tasks: groupTasks(path, groupMount), cpus: groupCPUs(path, groupMount),
	}, nil
}

// groupMemory is the least limit of the control groups that a file in /proc names, below
// where they are mounted, and of those above them; math.MaxInt64 for none.
func groupMemory(proc, mount string) int64 {
	least := int64(math.MaxInt64)
	eachGroup(proc, mount, "memory", func(dir string, old bool) {
		file := "memory.max"
		if old {
			file = "memory.limit_in_bytes"
		}
		least = min(least, groupNumber(dir, file))
	})
	return least
}

// groupTasks is the least limit of threads, in the same way.
func groupTasks(proc, mount string) int64 {
	least := int64(math.MaxInt64)
	eachGroup(proc, mount, "pids", func(dir string, _ bool) { least = min(least, groupNumber(dir, "pids.max")) })
	return least
}

// groupCPUs is the least quota of CPUs, in the same way; 0 for none.
func groupCPUs(proc, mount string) float64 {
	least := 0.0
	eachGroup(proc, mount, "cpu", func(dir string, old bool) {
		quota, period := int64(math.MaxInt64), int64(math.MaxInt64)
		if old {
			quota, period = groupNumber(dir, "cpu.cfs_quota_us"), groupNumber(dir, "cpu.cfs_period_us") // a quota of -1 is none
		} else if b, err := os.ReadFile(filepath.Join(dir, "cpu.max")); err == nil {
			if f := bytes.Fields(b); len(f) == 2 {
				quota, period = number(f[0]), number(f[1])
			}
		}
		if quota == math.MaxInt64 || period == math.MaxInt64 {
			return
		}
		if n := float64(quota) / float64(period); least == 0 || n < least {
			least = n
		}
	})
	return least
}

// eachGroup visits the directories of a controller's groups that a file in /proc names, and
// of those above them; old tells version 1. A file that can't be read names none.
func eachGroup(proc, mount, controller string, visit func(dir string, old bool)) {
	groups, err := os.ReadFile(proc)
	if err != nil {
		return // no control groups: nothing is limited
	}
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		root, old := mount, parts[0] != "0"
		if old {
			if !strings.Contains(","+parts[1]+",", ","+controller+",") {
				continue
			}
			root = filepath.Join(mount, controller)
		}
		for dir := parts[2]; ; dir = filepath.Dir(dir) {
			visit(filepath.Join(root, dir), old)
			if dir == "/" || dir == "." {
				break
			}
		}
	}
}

// groupNumber reads a limit, math.MaxInt64 for none ("max", -1, no such file).
func groupNumber(dir, file string) int64 {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return math.MaxInt64
	}
	return number(bytes.TrimSpace(b))
}

// number parses a positive number; anything else, and more than is possible, is no limit.
func number(b []byte) int64 {
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil || n <= 0 || n >= unlimited {
		return math.MaxInt64
	}
	return n
}
