package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"

	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"github.com/kevlard/kevlard/rdma/rail"
	"github.com/kevlard/kevlard/rdma/verbs"
)

// rdmaFacts is what a host has of RDMA.
type rdmaFacts struct {
	built   bool           // in this binary
	kernel  []string       // devices that the kernel has
	library error          // why libibverbs can't be used
	devices []verbs.Device // what it says of them
	err     error          // why some say nothing
	gpu     map[string]verbs.GPUMemory
}

// hostRDMA asks this host.
func hostRDMA() (rdmaFacts, error) {
	f := rdmaFacts{built: verbs.Built(), gpu: map[string]verbs.GPUMemory{}}
	var err error
	if f.kernel, err = verbs.KernelDevices(); err != nil {
		return f, err
	}
	if !f.built || len(f.kernel) == 0 {
		return f, nil // the library has nothing to add
	}
	l, err := verbs.Load()
	if f.library = err; err != nil {
		return f, nil
	}
	f.devices, f.err = l.Devices()
	for _, d := range f.devices {
		g, err := gpuMemory(l, d.Name)
		if err != nil {
			f.err = errors.Join(f.err, err)
			continue
		}
		f.gpu[d.Name] = g
	}
	return f, nil
}

func gpuMemory(l *verbs.Library, device string) (g verbs.GPUMemory, err error) {
	c, err := l.Open(device)
	if err != nil {
		return g, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return c.ProbeGPUMemory()
}

// checkRDMA looks at library, devices, ports and addresses. A host without RDMA is well
// unless the configuration asks for nothing else.
func (d *doctor) checkRDMA(context.Context) []finding {
	const check = "rdma"
	bad, instead := statusWarn, ": KV goes over TCP"
	switch d.cfg.Mesh.Transport {
	case config.TransportTCP:
		return one(check, statusOK, "", "not used: [mesh] transport is tcp")
	case config.TransportRDMA:
		bad, instead = statusFail, ""
	}
	f, err := d.probe.rdma()
	if err != nil {
		return one(check, bad, "run doctor as root", "%v", err)
	}
	absent := statusOK // nothing is wrong with a host without cards
	if bad == statusFail {
		absent = statusFail
	}
	const other = `fit a card and load its driver, or set [mesh] transport = "auto"`
	switch {
	case !f.built && (len(f.kernel) > 0 || bad == statusFail):
		return one(check, bad, "install a build that lists rdma in kevlard version; make build has it where libibverbs-dev is installed", "this binary was built without RDMA%s", instead)
	case len(f.kernel) == 0:
		return one(check, absent, when(absent != statusOK, other), "the kernel has no RDMA device%s", instead)
	case f.library != nil:
		return one(check, bad, "apt-get install libibverbs1 ibverbs-providers (on RHEL, dnf install libibverbs)", "the kernel has %s, but %v%s", strings.Join(f.kernel, ", "), f.library, instead)
	}
	var out []finding
	if f.err != nil {
		fix := "see the kernel log: dmesg | grep -i -e infiniband -e rdma"
		switch {
		case errors.Is(f.err, fs.ErrPermission):
			fix = "let the daemon's user open /dev/infiniband/uverbs*: add it to the group that owns them"
		case errors.Is(f.err, verbs.ErrNoDevices), errors.Is(f.err, fs.ErrNotExist):
			fix = "modprobe ib_uverbs, and see that /dev/infiniband/uverbs* are there"
		}
		out = append(out, one(check, bad, fix, "%v", strings.ReplaceAll(f.err.Error(), "\n", "; "))...)
	}
	rails, why := rail.Local(f.devices, rail.Want{Fabric: d.fabric()})
	if len(f.devices) == 0 {
		why = nil // the error above says it all
	}
	for i, r := range rails {
		out = append(out, railFinding(i, r, maxMTU(f.devices, r))...)
	}
	for _, reason := range why {
		out = append(out, one(check, bad, railFix(reason), "%s", reason)...)
	}
	for _, dev := range f.devices {
		if g, ok := f.gpu[dev.Name]; ok {
			out = append(out, one(check, statusOK, "", "%s reaches GPU memory by %v (dma-buf: %s; peer memory: %s)", dev.Name, g.Path(), g.DMABuf.Why, g.PeerMemory.Why)...)
		}
	}
	return out
}

// fabric returns the addresses that a rail must have, if the configuration says so.
func (d *doctor) fabric() []netip.Addr {
	addr, err := netip.ParseAddr(d.cfg.Mesh.Fabric)
	if err != nil {
		return nil // config check says what is wrong with it
	}
	gids, err := verbs.FabricGIDs(addr)
	if err != nil {
		return []netip.Addr{addr}
	}
	return gids
}

// railFinding says how a port that can be used will be.
func railFinding(i int, r rail.Rail, most verbs.MTU) []finding {
	a := r.Addresses[0]
	what := fmt.Sprintf("port %d of %s is rail %d: %v, address %v (GID %d), MTU %v", r.Port, r.Device, i, a.Type, a.Addr.Unmap(), a.Index, r.MTU)
	if r.MTU >= most {
		return one("rdma", statusOK, "", "%s", what)
	}
	fix := "raise the MTU of the subnet in its manager"
	if r.Link == verbs.LinkEthernet {
		fix = fmt.Sprintf("raise the MTU of its network interface to %d or more, here and at the switches", most.Bytes()+roceHeaders)
	}
	return one("rdma", statusWarn, fix, "%s, of %v", what, most)
}

// roceHeaders is room for the headers of RoCE v2 in an Ethernet frame.
const roceHeaders = 104

// maxMTU is what the port of a rail could do.
func maxMTU(devices []verbs.Device, r rail.Rail) verbs.MTU {
	for _, d := range devices {
		for _, p := range d.Ports {
			if d.Name == r.Device && p.Number == r.Port {
				return p.MaxMTU
			}
		}
	}
	return 0
}

// railFix says what to do about a port that can't be used.
func railFix(reason string) string {
	switch {
	case strings.Contains(reason, "LID"):
		return "start a subnet manager (opensm), or see why the switch's does not reach this port"
	case strings.Contains(reason, "address of [mesh] fabric"):
		return "if no other port is a rail, set [mesh] fabric to an address of a card"
	case strings.Contains(reason, "cable"):
		return "plug it in and set its interface up, or ignore it if it is meant to be unused"
	case strings.Contains(reason, "IP address"):
		return "ip addr add ADDRESS dev INTERFACE, or ignore it if it is meant to be unused"
	}
	return "ibv_devinfo -v shows all that the card says"
}

// when returns s, or nothing.
func when(yes bool, s string) string {
	if !yes {
		return ""
	}
	return s
}
