package verbs

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// channelFile is a file descriptor of the library in Go's poller. It is a duplicate,
// so that the library may close its own.
type channelFile struct {
	file *os.File
	raw  syscall.RawConn
}

// pollable takes a descriptor that does not block.
func pollable(fd int, name string) (*channelFile, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(own), name)
	// A deadline is refused if the poller did not take the file.
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &channelFile{f, raw}, nil
}

// wait calls take, which must not block, whenever the descriptor is readable, until
// it returns another error than EAGAIN. Its errors are that error, ErrClosed, or why
// ctx ended. Only one goroutine may wait.
func (c *channelFile) wait(ctx context.Context, take func() error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := c.file.SetReadDeadline(time.Time{}); err != nil {
		return ErrClosed
	}
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		// A deadline in the past wakes the reader; it fails only on a closed file.
		_ = c.file.SetReadDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-woken // else it could end the next wait
		}
	}()
	var result error
	err := c.raw.Read(func(uintptr) bool {
		result = take()
		return !errors.Is(result, syscall.EAGAIN)
	})
	switch {
	case err == nil:
		return result
	case errors.Is(err, os.ErrDeadlineExceeded):
		return context.Cause(ctx)
	default:
		return ErrClosed
	}
}

// close wakes who waits. A second close does nothing.
func (c *channelFile) close() { _ = c.file.Close() }
