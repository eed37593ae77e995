package verbs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// MemoryPath is how the memory of a GPU gets to the card and back.
type MemoryPath uint8

// The ways, from the best to the one that always works.
const (
	PathDMABuf     MemoryPath = iota // the card reads and writes it, by a dma-buf
	PathPeerMemory                   // so too, by a module of the kernel (nvidia-peermem)
	PathStaging                      // it is copied through registered memory of the host
)

func (p MemoryPath) String() string {
	return named(int(p), "dma-buf", "peer memory", "staging through host memory")
}

// Support is what was found out about one way.
type Support struct {
	Works bool
	Why   string // what says so
}

// GPUMemory is what was found out about the ways from a card to GPUs. That a GPU's
// driver can give its memory out is not looked at here.
type GPUMemory struct {
	DMABuf     Support
	PeerMemory Support
}

// Path returns the best way that works.
func (g GPUMemory) Path() MemoryPath {
	switch {
	case g.DMABuf.Works:
		return PathDMABuf
	case g.PeerMemory.Works:
		return PathPeerMemory
	}
	return PathStaging
}

// ProbeGPUMemory finds out which ways there are from this device to GPUs.
func (c *Context) ProbeGPUMemory() (GPUMemory, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return GPUMemory{}, ErrClosed
	}
	g := GPUMemory{PeerMemory: peerMemory(c.library.sysfs)}
	// No descriptor is -1, so a driver that knows dma-bufs says EBADF.
	h, _, _, err := registerDMABuf(c.domain, 0, os.Getpagesize(), 0, -1, accessLocalWrite)
	if err == nil {
		return g, errors.Join(fmt.Errorf("device %s registered a dma-buf that does not exist", c.device), deregister(h))
	}
	g.DMABuf = dmaBuf(err)
	return g, nil
}

// dmaBuf reads the error of registering a dma-buf that does not exist.
func dmaBuf(err error) Support {
	switch {
	case errors.Is(err, unix.EBADF):
		return Support{true, "the driver takes dma-bufs"}
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, syscall.EPROTONOSUPPORT):
		return Support{false, "the card's driver does not take dma-bufs"}
	case errors.Is(err, unix.ENOSYS):
		return Support{false, "libibverbs is older than 34 and knows no dma-bufs"}
	}
	return Support{false, fmt.Sprintf("the driver refuses dma-bufs: %v", err)}
}

// peerMemory looks for a module that pins GPU memory for cards.
func peerMemory(sysfs string) Support {
	if v, err := readSmall(filepath.Join(sysfs, "module/nvidia_peermem/version")); err == nil {
		return Support{true, "nvidia-peermem " + v}
	}
	clients, err := filepath.Glob(filepath.Join(sysfs, "kernel/mm/memory_peers/*/version"))
	if err != nil {
		return Support{false, err.Error()}
	}
	for _, f := range clients {
		if v, err := readSmall(f); err == nil {
			return Support{true, filepath.Base(filepath.Dir(f)) + " " + v}
		}
	}
	return Support{false, "no module nvidia_peermem, and no other client of peer memory"}
}
