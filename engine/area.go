package engine

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// area is the memory that a process shares with its engine: input rows, output
// rows and KV, each the business of one request at a time.
type area struct {
	mu      sync.RWMutex // held for reading while the memory is used
	mem     []byte       // nil after unmap; guarded by mu
	in, out int          // sizes of the parts
}

// areaSizes returns the sizes of the three parts for a stage.
func areaSizes(i Info) (in, out, kv int) {
	page := func(n int) int { return (n + 4095) &^ 4095 }
	rows := page(i.MaxRows * i.Dim * 4)
	return rows, rows, page(max(kvPiece, i.CellBytes))
}

// mapArea maps the area of a stage from fd, which must have its size already.
func mapArea(fd int, i Info) (*area, error) {
	in, out, kv := areaSizes(i)
	size := in + out + kv
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat shared area: %w", err)
	}
	if int64(size) != st.Size || size > maxArea {
		return nil, fmt.Errorf("shared area has %d bytes, want %d and at most %d", st.Size, size, int64(maxArea))
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map shared area of %d bytes: %w", size, err)
	}
	return &area{mem: mem, in: in, out: out}, nil
}

// use calls f with the parts of the area and reports false, without calling it,
// after unmap.
func (a *area) use(f func(in, out, kv []byte)) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if a.mem == nil {
		return false
	}
	end := a.in + a.out
	f(a.mem[:a.in:a.in], a.mem[a.in:end:end], a.mem[end:])
	return true
}

// unmap waits for uses to end and gives the memory back.
func (a *area) unmap() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mem == nil {
		return nil
	}
	err := unix.Munmap(a.mem)
	a.mem = nil
	return err
}
