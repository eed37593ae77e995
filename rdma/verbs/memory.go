package verbs

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The access flags, by the numbers of the verbs.
const (
	accessLocalWrite      uint32 = 1
	accessRemoteWrite     uint32 = 2
	accessRelaxedOrdering uint32 = 1 << 20
)

// Access is who may do what with a region.
type Access uint8

const (
	// LocalOnly: the own card may read and write it.
	LocalOnly Access = iota
	// PeerWrites: peers that know its key may write to it too.
	PeerWrites
)

func (a Access) flags() uint32 {
	if a == PeerWrites {
		return accessLocalWrite | accessRemoteWrite
	}
	return accessLocalWrite
}

// Region is registered memory. It stays in RAM until Close.
type Region struct {
	Addr      uint64 // what requests and peers call its first byte
	Bytes     int
	LocalKey  uint32
	RemoteKey uint32

	mu     sync.Mutex // guards handle and slab
	handle regionHandle
	slab   []byte // mapped by NewSlab
}

// Register registers memory that was mapped by the caller (never Go's heap), who
// keeps it mapped until Close. Errors are a *MemlockError or name the device.
func (c *Context) Register(mem []byte, access Access) (*Region, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return nil, ErrClosed
	}
	if len(mem) == 0 {
		return nil, errors.New("register memory for RDMA: there are no bytes")
	}
	p := unsafe.Pointer(unsafe.SliceData(mem))
	h, lkey, rkey, err := register(c.domain, p, len(mem), access.flags())
	if err != nil {
		return nil, c.registerError(len(mem), err)
	}
	return &Region{Addr: uint64(uintptr(p)), Bytes: len(mem), LocalKey: lkey, RemoteKey: rkey, handle: h}, nil
}

// registerError says what can be done about err.
func (c *Context) registerError(n int, err error) error {
	if errors.Is(err, syscall.ENOMEM) {
		var l unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) == nil && l.Cur != unix.RLIM_INFINITY {
			return &MemlockError{Bytes: n, Limit: l.Cur}
		}
		return fmt.Errorf("register %d bytes on RDMA device %s: %w: the host has too little memory, or the card holds as many regions as it can", n, c.device, err)
	}
	if errors.Is(err, syscall.EFAULT) {
		return fmt.Errorf("register %d bytes on RDMA device %s: %w: the memory is not mapped, or belongs to a device whose pages cannot be pinned", n, c.device, err)
	}
	return fmt.Errorf("register %d bytes on RDMA device %s: %w", n, c.device, err)
}

// NewSlab maps n bytes of zeros and registers them. Slab returns them.
func (c *Context) NewSlab(n int, access Access) (*Region, error) {
	if n <= 0 {
		return nil, fmt.Errorf("map %d bytes for RDMA: want at least one", n)
	}
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes for RDMA: %w", n, err)
	}
	r, err := c.Register(mem, access)
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(mem))
	}
	r.slab = mem
	return r, nil
}

// Slab returns the memory of a region that NewSlab made, or nil. It must not be used
// after Close.
func (r *Region) Slab() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.slab
}

// Close ends the registration: no card reads or writes the memory any more, and
// requests that name it fail. It unmaps a slab. A second Close does nothing.
func (r *Region) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.handle == nil {
		return nil
	}
	if err := deregister(r.handle); err != nil {
		return fmt.Errorf("give back %d bytes registered for RDMA: %w", r.Bytes, err)
	}
	r.handle = nil
	if r.slab == nil {
		return nil
	}
	mem := r.slab
	r.slab = nil
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("unmap %d bytes: %w", len(mem), err)
	}
	return nil
}
