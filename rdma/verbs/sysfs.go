package verbs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// defaultSysfs is where the kernel shows its devices.
const defaultSysfs = "/sys"

// portDir is where the kernel shows a port.
func portDir(sysfs, device string, port int) string {
	return filepath.Join(sysfs, "class/infiniband", filepath.Base(device), "ports", strconv.Itoa(port))
}

// readSmall reads a file of sysfs without its last newline.
func readSmall(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxCounterFile+1))
	if err != nil {
		return "", err
	}
	if len(b) > maxCounterFile {
		return "", fmt.Errorf("%s has over %d bytes", path, maxCounterFile)
	}
	return strings.TrimSuffix(string(b), "\n"), nil
}

// gidAttributes adds type and interface to g, as older libraries don't tell them.
func gidAttributes(sysfs, device string, port int, g GID) (GID, error) {
	dir := filepath.Join(portDir(sysfs, device, port), "gid_attrs")
	kind, err := readSmall(filepath.Join(dir, "types", strconv.Itoa(g.Index)))
	if err != nil {
		return g, err
	}
	switch kind {
	case "IB/RoCE v1":
		// One name for both: RoCE has a network interface.
		g.Type = GIDInfiniBand
	case "RoCE v2":
		g.Type = GIDRoCEv2
	default:
		return g, fmt.Errorf("GID %d of %s: unknown type %q", g.Index, device, kind)
	}
	// An InfiniBand port has no interface there: reading fails with EINVAL.
	if name, err := readSmall(filepath.Join(dir, "ndevs", strconv.Itoa(g.Index))); err == nil && name != "" {
		g.Interface = name
		if g.Type == GIDInfiniBand {
			g.Type = GIDRoCEv1
		}
	}
	return g, nil
}

// Counters reads the counters of a port, by the names that the kernel gives them:
// port_rcv_data (in units of 4 bytes), symbol_error, rnr_nak_retry_err and so on.
// Those that don't count, or are not there, are left out.
func Counters(device string, port int) (map[string]uint64, error) {
	return counters(defaultSysfs, device, port)
}

func counters(sysfs, device string, port int) (map[string]uint64, error) {
	out := map[string]uint64{}
	found := false
	for _, group := range []string{"counters", "hw_counters"} {
		dir := filepath.Join(portDir(sysfs, device, port), group)
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // Soft-RoCE has no counters, others no hw_counters
		}
		found = true
		for _, e := range entries {
			text, err := readSmall(filepath.Join(dir, e.Name()))
			if err != nil || len(out) == maxCounters {
				continue // not supported by this card
			}
			if n, err := strconv.ParseUint(text, 10, 64); err == nil && e.Name() != "lifespan" {
				out[e.Name()] = n
			}
		}
	}
	if !found {
		return nil, fmt.Errorf("port %d of RDMA device %s has no counters in %s", port, device, portDir(sysfs, device, port))
	}
	return out, nil
}

// KernelDevices lists the RDMA devices that the kernel has, with or without a library
// to use them.
func KernelDevices() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(defaultSysfs, "class/infiniband"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list RDMA devices: %w", err)
	}
	var names []string
	for _, e := range entries[:min(len(entries), maxDevices)] {
		names = append(names, e.Name())
	}
	return names, nil
}
