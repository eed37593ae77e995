package weights

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// atLeisure runs f on a thread of its own that the disk and the cores serve last, so that
// reading weights for others and checking them delays nothing. It returns when f has.
func atLeisure(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: the thread ends with the goroutine, and its priority with it.
		runtime.LockOSThread()
		const whoProcess, classIdle, classShift = 1, 3, 13
		// Where it is not permitted, f runs all the same.
		_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, whoProcess, 0, classIdle<<classShift)
		// Engines have nice 10: this has a third of the share of one of their threads.
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 15)
		f()
	}()
	<-done
}
