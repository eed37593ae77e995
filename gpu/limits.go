package gpu

import "time"

// The bounds of the package.
//
//	bound          what is bounded                              when it is full
//	maxDevices     devices that are read                        the others are left out
//	maxInstances   MIG instances of one of them                 the others are left out
//	xidQueue       Xids that wait for the next reading          the newest are dropped: the first ones matter
//	maxRecord      bytes of one record of the kernel log        the kernel cuts it off
//	maxRecording   bytes of one line of a recording             an error
//	maxSysfs       bytes of a sysfs file that are read          the rest is cut off
const (
	maxDevices   = 64
	maxInstances = 8
	xidQueue     = 256
	maxRecord    = 8192
	maxRecording = 1 << 20
	maxSysfs     = 4096
)

const (
	// readEvery is how often the devices are read.
	readEvery = 2 * time.Second
	// followEvery is how often a recording is looked at.
	followEvery = 200 * time.Millisecond
	// eventWait is how long one wait for NVML's events takes: the end of the watch waits
	// for it.
	eventWait = 500 * time.Millisecond
)
