package main

import (
	"bufio"
	"math"
	"os"
	"strconv"
	"strings"
)

// hostMemory is the bytes of memory that this process may use: the host's, or the limit
// of its control group or one above it, if that is less. 0 if nothing says.
func hostMemory() int64 {
	least := groupMemory("/proc/self/cgroup", groupMount)
	if n := memTotal(); n > 0 {
		least = min(least, n)
	}
	if least == math.MaxInt64 {
		return 0
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
