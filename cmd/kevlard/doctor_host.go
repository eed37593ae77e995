package main

import (
	"context"
	"math"
)

const (
	// littleSpace and enoughSpace are free bytes for the data directory.
	littleSpace = 64 << 20
	enoughSpace = 1 << 30
	// fewInodes and enoughInodes are files that may still be made there.
	fewInodes    = 100
	enoughInodes = 10000
	// littleMemory is too little for a daemon with an engine of the smallest models.
	littleMemory = 512 << 20
	// fewTasks and enoughTasks are threads: those of a daemon and its engines.
	fewTasks    = 128
	enoughTasks = 1024
)

// disk is the state of a file system.
type disk struct {
	free, total uint64 // bytes that unprivileged users may still write, and all
	// inodes is how many files may still be made; allInodes is 0 where there is no limit.
	inodes, allInodes uint64
	readOnly          bool
}

// groupLimits is what the control groups of a process allow it; math.MaxInt64 and 0 CPUs
// are no limit.
type groupLimits struct {
	memory int64 // bytes
	tasks  int64 // threads
	cpus   float64
}

func (d *doctor) checkDisk(context.Context) []finding {
	const (
		check  = "disk"
		orMove = ", or set [node] data_dir to another file system"
		fix    = "make room" + orMove
		fewer  = "remove files (df -i shows where)" + orMove
	)
	dir := d.cfg.Node.DataDir
	s, err := d.probe.space(existing(dir))
	room := byteSize(int64(s.free)) + " free of " + byteSize(int64(s.total)) + " for " + dir
	switch {
	case err != nil:
		return one(check, statusWarn, fix, "%v", err)
	case s.readOnly:
		return one(check, statusFail, "see why in dmesg and mount it again for writing"+orMove, "%s is on a file system that is read-only", dir)
	case s.free < littleSpace:
		return one(check, statusFail, fix, "%s", room)
	case s.allInodes > 0 && s.inodes < fewInodes:
		return one(check, statusFail, fewer, "%d inodes free of %d for %s", s.inodes, s.allInodes, dir)
	case s.free < enoughSpace:
		return one(check, statusWarn, fix, "%s", room)
	case s.allInodes > 0 && s.inodes < enoughInodes:
		return one(check, statusWarn, fewer, "%d inodes free of %d for %s", s.inodes, s.allInodes, dir)
	}
	return one(check, statusOK, "", "%s", room)
}

// groups returns the limits of the daemon's control groups, or of this process', and whose
// they are.
func (d *doctor) groups() (limits groupLimits, whose string, err error) {
	if d.status == nil {
		limits, err = d.probe.groups(0)
		return limits, "this shell", err
	}
	limits, err = d.probe.groups(d.status.PID)
	return limits, "the daemon", err
}

// checkMemory compares what the configuration asks for with what the control group allows.
func (d *doctor) checkMemory(context.Context) []finding {
	const check, fix = "cgroup", "raise MemoryMax in the unit (systemctl edit kevlard), or lower [engine] memory_bytes and [kv] ram_bytes"
	limits, whose, err := d.groups()
	limit := limits.memory
	wanted := int64(d.cfg.KV.RAMBytes) + int64(d.cfg.Engine.MemoryBytes)*cpus(d.cfg) // a GPU has its own
	switch {
	case err != nil: // the other checks of the group leave it to this one
		return one(check, statusWarn, "run doctor as root, on the host itself", "%v", err)
	case limit == math.MaxInt64:
		return one(check, statusOK, "", "no control group limits the memory of %s", whose)
	case limit < wanted:
		return one(check, statusFail, fix, "the control group of %s allows %s of memory, [engine] memory_bytes and [kv] ram_bytes are %s: it would be killed", whose, byteSize(limit), byteSize(wanted))
	case limit < littleMemory:
		return one(check, statusWarn, fix, "the control group of %s allows %s of memory, which is little", whose, byteSize(limit))
	}
	return one(check, statusOK, "", "the control group of %s allows %s of memory, of which %s are spoken for", whose, byteSize(limit), byteSize(wanted))
}

// checkCPUs looks for a quota: once it is used up, everything stands still until the next
// period, and a node that does not answer is taken for dead.
func (d *doctor) checkCPUs(context.Context) []finding {
	const check = "cpu"
	limits, whose, err := d.groups()
	switch {
	case err != nil:
		return nil
	case limits.cpus > 0:
		return one(check, statusWarn, "take CPUQuota out of the unit (systemctl edit kevlard); CPUWeight and AllowedCPUs share a host without pauses",
			"the control group of %s allows %.3g CPUs and stops it when they are used up: gossip stalls, and others may take it for dead", whose, limits.cpus)
	}
	return one(check, statusOK, "", "no control group stops %s", whose)
}

// checkTasks looks at the limit of processes, which counts threads.
func (d *doctor) checkTasks(context.Context) []finding {
	const check, fix = "tasks", "set TasksMax=infinity in the unit, as the shipped one does"
	limits, whose, err := d.groups()
	switch {
	case err != nil:
		return nil
	case limits.tasks < fewTasks:
		return one(check, statusFail, fix, "the control group of %s allows %d threads", whose, limits.tasks)
	case limits.tasks < enoughTasks:
		return one(check, statusWarn, fix, "the control group of %s allows %d threads, which engines with many use up", whose, limits.tasks)
	case limits.tasks < math.MaxInt64:
		return one(check, statusOK, "", "the control group of %s allows %d threads", whose, limits.tasks)
	}
	return one(check, statusOK, "", "no control group limits the threads of %s", whose)
}
