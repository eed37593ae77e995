package gpu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/kevlard/kevlard/gpu/health"
)

// openKernel opens the kernel log: from now on, or all of this boot that it still has.
func openKernel(path string, all bool) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("read the kernel log: %w", err)
	}
	if !all {
		if _, err := f.Seek(0, io.SeekEnd); err != nil && !errors.Is(err, syscall.ESPIPE) {
			f.Close()
			return nil, fmt.Errorf("read the kernel log from its end: %w", err)
		}
	}
	return f, nil
}

// followKernel hands Xids of the kernel log to got until ctx ends, the file ends or
// can't be read; it closes the file. A record of /dev/kmsg is "level,number,time,flags;text",
// then lines that begin with a space; other lines are taken as text.
func followKernel(ctx context.Context, f *os.File, got func(health.Xid)) error {
	defer f.Close()
	defer context.AfterFunc(ctx, func() { f.Close() })()
	// The kernel gives one record for each read, and fails if it does not fit.
	r := bufio.NewReaderSize(f, maxRecord)
	for {
		line, err := r.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue // no line of the driver is so long
		case errors.Is(err, syscall.EPIPE):
			continue // records were overwritten before they were read
		case errors.Is(err, io.EOF), ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("read the kernel log: %w", err)
		}
		if x, ok := kernelXid(string(line)); ok {
			got(x)
		}
	}
}

// kernelXid reads one line of /dev/kmsg.
func kernelXid(line string) (health.Xid, bool) {
	if strings.HasPrefix(line, " ") {
		return health.Xid{}, false // key=value of the record before
	}
	if head, rest, ok := strings.Cut(line, ";"); ok && strings.Count(head, ",") >= 3 && !strings.Contains(head, " ") {
		line = rest
	}
	return health.ParseXid(strings.TrimSuffix(line, "\n"))
}

// bootXids returns the Xids that the kernel log of this boot still has.
func bootXids(path string) ([]health.Xid, error) {
	f, err := openKernel(path, true)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []health.Xid
	buf := make([]byte, maxRecord)
	rest := ""
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("read the kernel log: %w", err)
	}
	for {
		// Not File.Read, which would wait for the next record.
		var n int
		var rerr error
		if err := raw.Read(func(fd uintptr) bool { n, rerr = syscall.Read(int(fd), buf); return true }); err != nil {
			return out, fmt.Errorf("read the kernel log: %w", err)
		}
		switch {
		case errors.Is(rerr, syscall.EPIPE) || errors.Is(rerr, syscall.EINTR):
			continue
		case errors.Is(rerr, syscall.EAGAIN) || rerr == nil && n == 0:
			return out, nil
		case rerr != nil:
			return out, fmt.Errorf("read the kernel log: %w", rerr)
		}
		lines := strings.Split(rest+string(buf[:n]), "\n")
		rest = lines[len(lines)-1]
		if len(rest) > maxRecord {
			rest = ""
		}
		for _, line := range lines[:len(lines)-1] {
			if x, ok := kernelXid(line); ok && len(out) < xidQueue {
				out = append(out, x)
			}
		}
	}
}
