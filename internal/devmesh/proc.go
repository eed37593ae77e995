package devmesh

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Usage is what a process has used so far.
type Usage struct {
	RSS int64 // bytes resident now
	CPU int64 // clock ticks (1/100 s) of user and system time
}

// UsageOf reads the memory and processor time of a process from /proc.
func UsageOf(pid int) (Usage, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Usage{}, fmt.Errorf("read usage of process %d: %w", pid, err)
	}
	kib, err := statusField(string(status), "VmRSS")
	if err != nil {
		return Usage{}, fmt.Errorf("read usage of process %d: %w", pid, err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, fmt.Errorf("read usage of process %d: %w", pid, err)
	}
	// The name in parentheses may hold spaces; user and system time are the 12th
	// and 13th fields after it.
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return Usage{}, fmt.Errorf("read usage of process %d: stat has %d fields after the name, want 13 or more", pid, len(f))
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	if err1 != nil || err2 != nil {
		return Usage{}, fmt.Errorf("read usage of process %d: times %q and %q are not numbers", pid, f[11], f[12])
	}
	return Usage{RSS: int64(kib) << 10, CPU: user + system}, nil
}

// statusField returns the number in one line of /proc/PID/status.
func statusField(text, key string) (int, error) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		if name != key {
			continue
		}
		f := strings.Fields(value)
		if len(f) == 0 {
			break
		}
		return strconv.Atoi(f[0])
	}
	return 0, fmt.Errorf("no number %s in the process status", key)
}

// Machine is the processor time of the whole machine so far, in clock ticks.
type Machine struct {
	Busy  int64
	Total int64 // busy and idle
}

// MachineTime reads the processor time of the machine from /proc/stat.
func MachineTime() (Machine, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return Machine{}, fmt.Errorf("read the processor time of the machine: %w", err)
	}
	m, err := machineTime(string(text))
	if err != nil {
		return Machine{}, fmt.Errorf("read the processor time of the machine: %w", err)
	}
	return m, nil
}

// machineTime reads the first line of /proc/stat: user, nice, system, idle, iowait,
// irq, softirq, steal. The guests' times that follow are part of user and nice.
func machineTime(text string) (Machine, error) {
	line, _, _ := strings.Cut(text, "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return Machine{}, fmt.Errorf("the first line is %.100q: want cpu and 8 numbers or more", line)
	}
	var m Machine
	for i, s := range f[1:9] {
		v, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return Machine{}, fmt.Errorf("time %d of the first line: %w", i+1, err)
		}
		m.Total += v
		if i != 3 && i != 4 { // idle, and idle with I/O under way
			m.Busy += v
		}
	}
	return m, nil
}

// BusySince returns the share of all processors that was used since an earlier
// reading, in percent.
func (m Machine) BusySince(earlier Machine) float64 {
	if m.Total <= earlier.Total {
		return 0
	}
	return 100 * float64(m.Busy-earlier.Busy) / float64(m.Total-earlier.Total)
}
