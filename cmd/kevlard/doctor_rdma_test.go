package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"github.com/kevlard/kevlard/rdma/verbs"
)

// wellRDMA is a host with one card that has nothing wrong.
func wellRDMA() rdmaFacts {
	gid := func(i int, addr string) verbs.GID {
		return verbs.GID{Index: i, Addr: netip.AddrFrom16(netip.MustParseAddr(addr).As16()), Type: verbs.GIDRoCEv2}
	}
	return rdmaFacts{
		built: true, kernel: []string{"mlx5_0"},
		devices: []verbs.Device{{Name: "mlx5_0", Ports: []verbs.Port{{
			Number: 1, State: verbs.PortActive, Physical: 5, Link: verbs.LinkEthernet, MTU: 5, MaxMTU: 5,
			GIDs: []verbs.GID{gid(0, "fe80::1"), gid(3, "10.1.0.1")},
		}}}},
		gpu: map[string]verbs.GPUMemory{"mlx5_0": {DMABuf: verbs.Support{Works: true, Why: "the driver takes dma-bufs"}, PeerMemory: verbs.Support{Why: "no module"}}},
	}
}

// TestDoctorRDMA breaks one thing at a time, with [mesh] transport auto, where TCP goes
// on, and rdma, where nothing does.
func TestDoctorRDMA(t *testing.T) {
	port := func(f *rdmaFacts) *verbs.Port { return &f.devices[0].Ports[0] }
	for _, c := range []struct {
		name        string
		spoil       func(*rdmaFacts)
		auto, rdma  string // the worst status with each transport
		what, fixes string // of that finding: how it begins, and what its fix has
	}{
		{"well", func(*rdmaFacts) {}, statusOK, statusOK, "port 1 of mlx5_0 is rail 0: RoCE v2, address 10.1.0.1 (GID 3), MTU 4096", ""},
		{"no cards", func(f *rdmaFacts) { *f = rdmaFacts{built: true} }, statusOK, statusFail, "the kernel has no RDMA device", ""},
		{"not built, no cards", func(f *rdmaFacts) { *f = rdmaFacts{} }, statusOK, statusFail, "", ""},
		{"not built", func(f *rdmaFacts) { *f = rdmaFacts{kernel: []string{"mlx5_0"}} }, statusWarn, statusFail, "this binary was built without RDMA", "libibverbs-dev"},
		{
			"no library",
			func(f *rdmaFacts) {
				*f = rdmaFacts{built: true, kernel: []string{"mlx5_0"}, library: fmt.Errorf("%w: no such file", verbs.ErrNoLibrary)}
			},
			statusWarn, statusFail, "the kernel has mlx5_0, but libibverbs cannot be used: no such file", "libibverbs1",
		},
		{"no uverbs", func(f *rdmaFacts) { f.devices, f.gpu, f.err = nil, nil, verbs.ErrNoDevices }, statusWarn, statusFail, "no RDMA in this kernel", "modprobe ib_uverbs"},
		{
			"uverbs of another user",
			func(f *rdmaFacts) { f.devices, f.gpu, f.err = nil, nil, fmt.Errorf("open: %w", syscall.EACCES) },
			statusWarn, statusFail, "open: permission denied", "/dev/infiniband/uverbs*",
		},
		{"a card that fails", func(f *rdmaFacts) { f.err = errors.New("ask mlx5_1: input/output error") }, statusWarn, statusFail, "ask mlx5_1", "dmesg"},
		{"port down", func(f *rdmaFacts) { port(f).State, port(f).Physical = verbs.PortDown, 2 }, statusWarn, statusFail, "port 1 of mlx5_0 is down (cable: polling)", "plug it in"},
		{"no address", func(f *rdmaFacts) { port(f).GIDs = port(f).GIDs[:1] }, statusWarn, statusFail, "port 1 of mlx5_0 has only addresses that are link-local", "ip addr add"},
		{"no subnet manager", func(f *rdmaFacts) { port(f).Link = verbs.LinkInfiniBand }, statusWarn, statusFail, "port 1 of mlx5_0 has no LID", "opensm"},
		{"small MTU", func(f *rdmaFacts) { port(f).MTU = 3 }, statusWarn, statusWarn, "port 1 of mlx5_0 is rail 0: RoCE v2, address 10.1.0.1 (GID 3), MTU 1024, of 4096", "to 4200 or more"},
	} {
		for transport, want := range map[string]string{config.TransportAuto: c.auto, config.TransportRDMA: c.rdma} {
			d := wellDoctor()
			d.cfg.Mesh.Transport = transport
			d.probe.rdma = func() (rdmaFacts, error) {
				f := wellRDMA()
				c.spoil(&f)
				return f, nil
			}
			found := d.checkRDMA(t.Context())
			if len(found) == 0 {
				t.Fatalf("%s: nothing", c.name)
			}
			worst := found[0]
			for _, f := range found {
				if rank(f.Status) > rank(worst.Status) {
					worst = f
				}
				if (f.Fix == "") != (f.Status == statusOK) {
					t.Errorf("%s, %s: %+v", c.name, transport, f)
				}
			}
			if worst.Status != want || !strings.HasPrefix(worst.What, c.what) || want != statusOK && !strings.Contains(worst.Fix, c.fixes) {
				t.Errorf("%s, %s: %+v; want %s: %s", c.name, transport, worst, want, c.what)
			}
		}
	}
}

func rank(status string) int { return strings.Index(statusOK+statusWarn+statusFail, status) }

// TestDoctorRDMAWords checks what is said besides.
func TestDoctorRDMAWords(t *testing.T) {
	d := wellDoctor()
	d.probe.rdma = func() (rdmaFacts, error) { return wellRDMA(), nil }
	found := d.checkRDMA(t.Context())
	if f := found[len(found)-1]; f.What != "mlx5_0 reaches GPU memory by dma-buf (dma-buf: the driver takes dma-bufs; peer memory: no module)" {
		t.Errorf("%+v", f)
	}
	d.cfg.Mesh.Fabric = "10.7.7.7"
	if found := d.checkRDMA(t.Context()); found[0].Status != statusWarn || found[0].What != "port 1 of mlx5_0 does not have the address of [mesh] fabric" {
		t.Errorf("%+v", found)
	}
	d.cfg.Mesh.Transport = config.TransportTCP
	if found := d.checkRDMA(t.Context()); len(found) != 1 || found[0].Status != statusOK {
		t.Errorf("%+v", found)
	}
}

// TestK59Memlock is half of case K59: a unit without LimitMEMLOCK. The other half is
// the shipped unit's (TestUnit) and the message of a registration that fails.
func TestK59Memlock(t *testing.T) {
	d := wellDoctor()
	d.probe.limit = limitsOf(t, 7, 64<<10, 1<<20)
	if f := d.checkMemlock(t.Context()); f[0].Status != statusWarn || !strings.Contains(f[0].Fix, "LimitMEMLOCK=infinity") {
		t.Errorf("%+v", f)
	}
	d.cfg.Mesh.Transport = config.TransportRDMA
	if f := d.checkMemlock(t.Context()); f[0].Status != statusFail || !strings.HasPrefix(f[0].What, "the daemon may lock 64.0 KiB of memory, and [mesh] transport is rdma") {
		t.Errorf("%+v", f)
	}
}
