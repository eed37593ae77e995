package verbs

// The bounds of the package.
//
//	bound          what is bounded                          when it is reached
//	maxBatch       requests of a post, completions of a     a longer post is refused; Poll takes the rest
//	               poll                                     next time
//	MaxRetries     retries of a queue pair                  more are refused: Soft-RoCE takes 7 as for ever
//	maxDevices     devices that are looked at               the others are not listed
//	maxGIDs        entries of a port's GID table            the others are not listed
//	maxCounters    counters of a port                       the others are left out
//	maxCounterFile bytes of a file in sysfs                 it is refused
//
// How many regions, queues and queue pairs there may be is the device's to say
// (Device.Max...), and the caller's to bound.
const (
	maxBatch       = 64
	MaxRetries     = 6
	maxDevices     = 64
	maxGIDs        = 1024
	maxCounters    = 256
	maxCounterFile = 4096
)
