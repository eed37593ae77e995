package main

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// hostMemory is the bytes of memory that this process may use: the host's, or the limit
// of its control group or one above it, if that is less. 0 if nothing says.
func hostMemory() int64 {
	least := groupMemory("/proc/self/cgroup", "/sys/fs/cgroup")
	if n := memTotal(); n > 0 {
		least = min(least, n)
	}
	if least == math.MaxInt64 {
		return 0
	}
	return least
}

// processMemory is the least memory limit of the control groups that a process is in (0:
// this one), math.MaxInt64 for none.
func processMemory(pid int) (int64, error) {
	path := "/proc/self/cgroup"
	if pid != 0 {
		path = fmt.Sprintf("/proc/%d/cgroup", pid)
	}
	if _, err := os.Stat(path); err != nil {
		return 0, fmt.Errorf("read the control group of process %d: %w", pid, err)
	}
	return groupMemory(path, "/sys/fs/cgroup"), nil
}

// groupMemory is the least limit of the control groups that a file in /proc names, below
// where they are mounted, and of those above them; math.MaxInt64 for none.
func groupMemory(proc, mount string) int64 {
	least := int64(math.MaxInt64)
	group, err := os.ReadFile(proc)
	if err != nil {
		group = nil // no control groups: the host's memory counts
	}
	for line := range strings.Lines(string(group)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		root, file := mount, "memory.max"
		switch {
		case parts[0] == "0":
		case strings.Contains(","+parts[1]+",", ",memory,"):
			root, file = filepath.Join(mount, "memory"), "memory.limit_in_bytes"
		default:
			continue
		}
		for dir := parts[2]; ; dir = filepath.Dir(dir) {
			if b, err := os.ReadFile(filepath.Join(root, dir, file)); err == nil {
				if n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64); err == nil && n > 0 { // "max" is none
					least = min(least, n)
				}
			}
			if dir == "/" || dir == "." {
				break
			}
		}
	}
	return least
}

// memTotal is the host's memory in bytes, 0 if /proc does not say.
func memTotal() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) == 3 && fields[0] == "MemTotal:" {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0
			}
			return n << 10
		}
	}
	return 0
}
