package main

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// processLimit returns the soft limit of a process; 0 is this one.
func processLimit(pid int, resource int) (uint64, error) {
	var r unix.Rlimit
	if err := unix.Prlimit(pid, resource, nil, &r); err != nil {
		return 0, fmt.Errorf("read the limits of process %d: %w", pid, err)
	}
	return r.Cur, nil
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
