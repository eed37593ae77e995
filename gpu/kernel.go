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
// can't be read; it closes the file.
func followKernel(ctx context.Context, f *os.File, got func(health.Xid)) error {
	defer f.Close()
	defer context.AfterFunc(ctx, func() { f.Close() })()
	if err := kernelXids(f, got); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// bootXids returns the Xids that the kernel log of this boot still has, the first ones if
// they are many.
func bootXids(path string) ([]health.Xid, error) {
	f, err := openKernel(path, true)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []health.Xid
	err = kernelXids(present{f}, func(x health.Xid) {
		if len(out) < xidQueue {
			out = append(out, x)
		}
	})
	return out, err
}

// present is what there is to read of a file now: it ends where os.File waits for more.
type present struct{ f *os.File }

func (p present) Read(b []byte) (n int, err error) {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return 0, err
	}
	if rerr := raw.Read(func(fd uintptr) bool { n, err = syscall.Read(int(fd), b); return true }); rerr != nil {
		return 0, rerr
	}
	if errors.Is(err, syscall.EAGAIN) || err == nil && n == 0 {
		err = io.EOF
	}
	return max(n, 0), err
}

// kernelXids hands the Xids of a kernel log to got until it ends. A record of /dev/kmsg is
// "level,number,time,flags;text", then lines that begin with a space; other lines are taken
// as text.
func kernelXids(log io.Reader, got func(health.Xid)) error {
	// The kernel gives one record for each read, and fails if it does not fit.
	r := bufio.NewReaderSize(log, maxRecord)
	for {
		line, err := r.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue // no line of the driver is so long
		case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.EINTR):
			continue // records were overwritten before they were read
		case errors.Is(err, io.EOF):
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
