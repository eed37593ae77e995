package verbs

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// files makes files below a directory of the test, as sysfs would have them.
func files(t *testing.T, content map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range content {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestCounters(t *testing.T) {
	const port = "class/infiniband/mlx5_0/ports/1/"
	sysfs := files(t, map[string]string{
		port + "counters/port_rcv_data": "18446744073709551615", port + "counters/symbol_error": "3", port + "counters/odd": "N/A (no PMA)",
		port + "hw_counters/rnr_nak_retry_err": "7", port + "hw_counters/lifespan": "12", port + "counters/long": strings.Repeat("1", maxCounterFile+1),
	})
	got, err := counters(sysfs, "mlx5_0", 1)
	want := map[string]uint64{"port_rcv_data": 1<<64 - 1, "symbol_error": 3, "rnr_nak_retry_err": 7}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, device := range []string{"mlx5_1", "../infiniband/mlx5_1", ""} {
		if got, err := counters(sysfs, device, 1); err == nil {
			t.Errorf("%q: %v", device, got)
		}
	}
}

func TestGIDAttributes(t *testing.T) {
	const attrs = "class/infiniband/mlx5_0/ports/1/gid_attrs/"
	sysfs := files(t, map[string]string{
		attrs + "types/0": "IB/RoCE v1", attrs + "types/1": "RoCE v2", attrs + "ndevs/1": "eth2", attrs + "types/2": "IB/RoCE v1", attrs + "ndevs/2": "eth2",
		attrs + "types/3": "RoCE v9",
	})
	addr := netip.MustParseAddr("fe80::1")
	for i, want := range []GID{{Type: GIDInfiniBand}, {Type: GIDRoCEv2, Interface: "eth2"}, {Type: GIDRoCEv1, Interface: "eth2"}} {
		want.Index, want.Addr = i, addr
		if got, err := gidAttributes(sysfs, "mlx5_0", 1, GID{Index: i, Addr: addr}); err != nil || got != want {
			t.Errorf("%d: %+v, %v", i, got, err)
		}
	}
	for i := 3; i <= 4; i++ {
		if got, err := gidAttributes(sysfs, "mlx5_0", 1, GID{Index: i}); err == nil {
			t.Errorf("%d: %+v", i, got)
		}
	}
}

// TestGPUMemoryPath goes through what drivers and kernels say.
func TestGPUMemoryPath(t *testing.T) {
	nothing := files(t, nil)
	nvidia := files(t, map[string]string{"module/nvidia_peermem/version": "550.1"})
	other := files(t, map[string]string{"kernel/mm/memory_peers/amdkfd/version": "1.0"})
	for _, c := range []struct {
		err   error
		sysfs string
		want  MemoryPath
		peer  string
	}{
		{unix.EBADF, nvidia, PathDMABuf, "nvidia-peermem 550.1"},
		{unix.EOPNOTSUPP, nvidia, PathPeerMemory, "nvidia-peermem 550.1"},
		{unix.ENOSYS, other, PathPeerMemory, "amdkfd 1.0"},
		{unix.EINVAL, nothing, PathStaging, "no module nvidia_peermem, and no other client of peer memory"},
		{unix.EPROTONOSUPPORT, nothing, PathStaging, "no module nvidia_peermem, and no other client of peer memory"},
	} {
		g := GPUMemory{DMABuf: dmaBuf(c.err), PeerMemory: peerMemory(c.sysfs)}
		if g.Path() != c.want || g.PeerMemory.Why != c.peer || g.DMABuf.Why == "" {
			t.Errorf("%v: %v, %+v", c.err, g.Path(), g)
		}
	}
}

// TestErrorTexts: whoever reads them must learn what happened and what to do.
func TestErrorTexts(t *testing.T) {
	for s := range Status(24) {
		err := error(fmt.Errorf("send to node-2: %w", Completion{Status: s, QP: 17, Vendor: 0x88}.Err()))
		var w *WorkError
		if s == StatusSuccess {
			if (Completion{}).Err() != nil {
				t.Error("success is an error")
			}
			continue
		}
		if !errors.As(err, &w) || !errors.Is(err, s) || errors.Is(err, s+1) || !strings.Contains(err.Error(), fmt.Sprintf("(status %d), vendor code 0x88", uint32(s))) {
			t.Errorf("%d: %v", s, err)
		}
	}
	for s, text := range map[Status]string{
		StatusRetryExceeded: "link is down", StatusRemoteAccess: "key", StatusFlushed: "first error", StatusNotReady: "posted no receive",
	} {
		if !strings.Contains(s.Error(), text) {
			t.Errorf("%v: want %q", s, text)
		}
	}
	for e, text := range map[Event]string{
		{Kind: EventPortDown, Port: 1}: "port down (port 1)", {Kind: EventPairFatal, QP: 9}: "queue pair failed (queue pair 9)",
		{Kind: EventDeviceFatal}: "device failed", {Kind: 99}: "99", {Kind: EventGIDChanged, Port: 2}: "GIDs changed (port 2)",
	} {
		if e.String() != text {
			t.Errorf("%v: want %q", e, text)
		}
	}
	for m, bytes := range map[MTU]int{0: 0, 1: 256, 3: 1024, 5: 4096, 6: 0} {
		if m.Bytes() != bytes {
			t.Errorf("MTU %d: %d", uint8(m), m.Bytes())
		}
	}
}

// TestLoad: whatever this host has, Load says it in a way that a caller can tell.
func TestLoad(t *testing.T) {
	l, err := Load()
	switch {
	case !Built():
		if !errors.Is(err, ErrNotBuilt) {
			t.Error(err)
		}
	case err != nil:
		if !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "libibverbs.so.1") {
			t.Error(err)
		}
	default:
		if _, err := l.Devices(); err != nil {
			t.Log(err) // a kernel without RDMA, or devices of another user
		}
	}
}
