package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// errInterrupted is the cause of the verbs' context once a signal asked the
// program to end.
var errInterrupted = errors.New("interrupted")

// impatience is how long after the first signal a second one counts. Supervisors
// such as timeout(1) signal a process and its group, which is one wish, not two.
const impatience = time.Second

// interruptible returns a context that ends at the first SIGINT or SIGTERM. One
// more after a while ends the program at once: whoever sends it has waited long
// enough.
func interruptible(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		var first time.Time
		for {
			select {
			case <-signals:
			case <-done:
				return
			}
			switch {
			case first.IsZero():
				first = time.Now()
				cancel(errInterrupted)
			case time.Since(first) >= impatience:
				os.Exit(exitInterrupted)
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel(nil)
	}
}
