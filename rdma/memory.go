package rdma

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// block is memory outside the Go heap, registered with one device or several.
type block struct {
	mem     []byte
	regions []Region // by device
}

// newBlock maps n bytes and registers them with all devices.
func newBlock(n int, devices ...Device) (*block, error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes for RDMA: %w", n, err)
	}
	b := &block{mem: mem}
	for _, d := range devices {
		r, err := d.Register(mem)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %d bytes with %s: %w", ErrMemory, n, d.Name(), err), b.close())
		}
		b.regions = append(b.regions, r)
	}
	return b, nil
}

// close gives the memory back; no card uses it any more.
func (b *block) close() error {
	var errs []error
	for _, r := range b.regions {
		errs = append(errs, r.Release())
	}
	b.regions = nil
	return errors.Join(append(errs, unix.Munmap(b.mem))...)
}
