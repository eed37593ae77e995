package verbs

import (
	"fmt"
	"sync"
)

// Context is an open device with a protection domain: memory and queue pairs of one
// Context may be used together. Its methods may be called from many goroutines.
type Context struct {
	library *Library
	device  string

	mu     sync.RWMutex // held for writing by Close
	closed bool
	handle contextHandle
	domain domainHandle
	events *channelFile
}

// Open opens a device by name.
func (l *Library) Open(device string) (*Context, error) {
	var c contextHandle
	openErr := fmt.Errorf("%w: kevlard doctor lists those that there are", ErrUnknownDevice)
	err := eachDevice(func(name string, open func() (contextHandle, error)) bool {
		if name == device {
			c, openErr = open()
		}
		return name != device
	})
	if err != nil {
		return nil, fmt.Errorf("open RDMA device %s: %w", device, err)
	}
	if openErr != nil {
		return nil, fmt.Errorf("open RDMA device %s: %w", device, openErr)
	}
	x := &Context{library: l, device: device, handle: c}
	if err := x.prepare(); err != nil {
		return nil, fmt.Errorf("open RDMA device %s: %w", device, err)
	}
	return x, nil
}

func (c *Context) prepare() error {
	fd, err := openEvents(c.handle)
	if err == nil {
		c.events, err = pollable(fd, "RDMA events of "+c.device)
	}
	if err == nil {
		c.domain, err = allocDomain(c.handle)
	}
	if err == nil {
		return nil
	}
	if c.events != nil {
		c.events.close()
	}
	if more := closeContext(c.handle); more != nil {
		return fmt.Errorf("%w; and close it: %w", err, more)
	}
	return err
}

// Name is the device's.
func (c *Context) Name() string { return c.device }

// Port asks how a port is now.
func (c *Context) Port(n int) (Port, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return Port{}, ErrClosed
	}
	p, err := c.library.port(c.handle, c.device, n)
	if err != nil {
		return Port{}, fmt.Errorf("ask port %d of RDMA device %s: %w", n, c.device, err)
	}
	return p, nil
}

// Close closes the device, of which nothing may be left: with EBUSY it stays open,
// and Close may be called again.
func (c *Context) Close() error {
	if done, err := c.release(); done || err != nil {
		return err
	}
	// Without the lock: closing the file waits for who takes an event, and that one for
	// the lock.
	c.events.close()
	if err := closeContext(c.handle); err != nil {
		return fmt.Errorf("close RDMA device %s: %w", c.device, err)
	}
	return nil
}

// release reports whether the device was closed before.
func (c *Context) release() (done bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return true, nil
	}
	if err := freeDomain(c.domain); err != nil {
		return false, fmt.Errorf("close RDMA device %s: free its protection domain: %w", c.device, err)
	}
	c.closed = true
	return false, nil
}
