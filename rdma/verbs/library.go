package verbs

import (
	"errors"
	"fmt"
	"net"
)

// Library is libibverbs, opened.
type Library struct {
	sysfs string // where the kernel shows its devices
}

// Built reports whether the binary has RDMA compiled in.
func Built() bool { return built }

// Load opens libibverbs. Its errors wrap ErrNotBuilt or ErrNoLibrary. The library
// stays open for the life of the process; Load may be called again.
func Load() (*Library, error) {
	if err := load(); err != nil {
		return nil, err
	}
	return &Library{sysfs: defaultSysfs}, nil
}

// Devices asks all devices what they are, in the order of the library. A device that
// can't be asked is left out and named in the error, which comes with the others.
// ErrNoDevices says that this kernel has no RDMA at all.
func (l *Library) Devices() ([]Device, error) {
	var out []Device
	var bad []error
	err := eachDevice(func(name string, open func() (contextHandle, error)) bool {
		c, err := open()
		if err != nil {
			bad = append(bad, fmt.Errorf("open RDMA device %s: %w", name, err))
			return true
		}
		d, err := l.describe(c, name)
		if err != nil {
			bad = append(bad, fmt.Errorf("ask RDMA device %s: %w", name, err))
		} else {
			out = append(out, d)
		}
		if err := closeContext(c); err != nil {
			bad = append(bad, fmt.Errorf("close RDMA device %s: %w", name, err))
		}
		return len(out) < maxDevices
	})
	if err != nil {
		return nil, err
	}
	return out, errors.Join(bad...)
}

func (l *Library) describe(c contextHandle, name string) (Device, error) {
	raw, err := queryDevice(c)
	if err != nil {
		return Device{}, err
	}
	d := raw.Device
	d.Name = name
	for n := 1; n <= raw.ports; n++ {
		p, err := l.port(c, name, n)
		if err != nil {
			return Device{}, fmt.Errorf("port %d: %w", n, err)
		}
		d.Ports = append(d.Ports, p)
	}
	return d, nil
}

// port asks for a port and its addresses.
func (l *Library) port(c contextHandle, device string, n int) (Port, error) {
	p, gids, err := queryPort(c, n)
	if err != nil {
		return Port{}, err
	}
	for i := range min(gids, maxGIDs) {
		g, ifindex, err := queryGID(c, n, i)
		if err != nil {
			continue // an empty entry, or one that goes just now
		}
		if zero := [16]byte{}; g.Addr.As16() == zero {
			continue
		}
		if tellsGIDTypes() {
			if f, err := net.InterfaceByIndex(ifindex); err == nil && ifindex > 0 {
				g.Interface = f.Name
			}
		} else if g, err = gidAttributes(l.sysfs, device, n, g); err != nil {
			continue
		}
		p.GIDs = append(p.GIDs, g)
	}
	return p, nil
}
