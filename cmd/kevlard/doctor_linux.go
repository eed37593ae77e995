package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// processLimit returns the soft limit of a process; 0 is this one. It reads procfs:
// prlimit refuses a root without CAP_SYS_RESOURCE the limits of another user's process.
func processLimit(pid int, resource int) (uint64, error) {
	path := "/proc/self/limits"
	if pid != 0 {
		path = fmt.Sprintf("/proc/%d/limits", pid)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read the limits of a process: %w", err)
	}
	n, err := softLimit(string(text), resource)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// softLimit finds a limit in what procfs says of a process.
func softLimit(text string, resource int) (uint64, error) {
	name := map[int]string{limitMemlock: "Max locked memory", limitFiles: "Max open files"}[resource]
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		fields := strings.Fields(rest)
		switch {
		case !ok || name == "" || len(fields) == 0:
		case fields[0] == "unlimited":
			return limitInfinity, nil
		default:
			return strconv.ParseUint(fields[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("resource %d (%q) is not in it", resource, name)
}

// The resources and the value of no limit.
const (
	limitMemlock  = unix.RLIMIT_MEMLOCK
	limitFiles    = unix.RLIMIT_NOFILE
	limitInfinity = unix.RLIM_INFINITY
)

// clockError returns what the kernel thinks this clock may be wrong by, and whether
// something keeps it right.
func clockError() (most time.Duration, synchronised bool, err error) {
	var t unix.Timex // no modes: nothing is changed
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return 0, false, fmt.Errorf("read the state of the clock: %w", err)
	}
	return time.Duration(t.Maxerror) * time.Microsecond, state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0, nil
}

// ownerOf returns the number of the user that a file belongs to.
func ownerOf(info os.FileInfo) (uint32, error) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("its file system says %T of it", info.Sys())
	}
	return s.Uid, nil
}

// diskSpace describes the file system at path.
func diskSpace(path string) (disk, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return disk{}, fmt.Errorf("read the free space of %s: %w", path, err)
	}
	return disk{
		free: s.Bavail * uint64(s.Bsize), total: s.Blocks * uint64(s.Bsize),
		inodes: s.Ffree, allInodes: s.Files, readOnly: s.Flags&unix.ST_RDONLY != 0,
	}, nil
}
