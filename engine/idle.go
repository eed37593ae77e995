//go:build cgo

package engine

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// idly runs f in a thread that the kernel lets run when nothing else wants to
// (SCHED_IDLE): loading never takes time from what serves. The thread ends with f,
// because without privileges it could not become a normal one again. A panic of f is
// the caller's.
func idly(f func() error) error {
	type end struct {
		err      error
		panicked any
	}
	ended := make(chan end, 1)
	go func() {
		runtime.LockOSThread() // for good
		var e end
		defer func() {
			e.panicked = recover()
			ended <- e
		}()
		if unix.Gettid() == unix.Getpid() { // the first thread can't end: while it is held here, it is another's turn
			e.err = idly(f)
			runtime.UnlockOSThread()
			return
		}
		// Where the kernel refuses, it is loaded at the priority of the rest.
		_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
		e.err = f()
	}()
	e := <-ended
	if e.panicked != nil {
		panic(e.panicked)
	}
	return e.err
}
