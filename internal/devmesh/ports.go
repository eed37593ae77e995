package devmesh

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// preflight reports every address of specs that another process listens on, with
// that process if it can be found. It holds no port afterwards.
func preflight(specs []spec) error {
	var errs []error
	for _, s := range specs {
		for offset, use := range []string{"API", "gossip", "mesh", "bulk"} {
			networks := []string{"tcp"}
			if use == "gossip" {
				networks = append(networks, "udp")
			}
			for _, network := range networks {
				if err := tryListen(network, s.addr(offset)); err != nil {
					errs = append(errs, fmt.Errorf("%s: %s address %s (%s): %w", s.name, use, s.addr(offset), network, err))
				}
			}
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("%w\nstop that process, or choose other ports with --base-port", errors.Join(errs...))
	}
	return nil
}

// FreeBase returns the first base port from first upwards, in steps of 10, at
// which the n nodes of a mesh find all their addresses free.
func FreeBase(first, n int) (int, error) {
	for base := first; base+3 <= 65535 && base < first+1000; base += 10 {
		specs := make([]spec, n)
		for i := range specs {
			specs[i] = spec{ip: fmt.Sprintf("127.0.0.%d", 11+i), base: base}
		}
		if preflight(specs) == nil {
			return base, nil
		}
	}
	return 0, fmt.Errorf("no free base port from %d to %d for %d nodes", first, first+1000, n)
}

func tryListen(network, addr string) error {
	var err error
	if network == "udp" {
		var c net.PacketConn
		if c, err = net.ListenPacket(network, addr); err == nil {
			return c.Close()
		}
	} else {
		var l net.Listener
		if l, err = net.Listen(network, addr); err == nil {
			return l.Close()
		}
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	if pid := holder(network, addr); pid != 0 {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // the name only decorates the message
		return fmt.Errorf("already taken by pid %d (%s)", pid, strings.TrimSpace(string(name)))
	}
	return errors.New("already taken by another process")
}

// holder returns the process that is bound to addr, or 0 when /proc does not tell:
// other users' processes hide their descriptors.
func holder(network, addr string) int {
	want, err := netip.ParseAddrPort(addr)
	if err != nil {
		return 0
	}
	f, err := os.Open("/proc/net/" + network)
	if err != nil {
		return 0
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Scan() // the heading
	for lines.Scan() {
		inode, ok := boundInode(lines.Text(), network, want)
		if !ok {
			continue
		}
		if pid := socketOwner(inode); pid != 0 {
			return pid
		}
	}
	return 0
}

// boundInode returns the socket inode of one line of /proc/net/tcp or udp if that
// socket is bound to want or to its port on all addresses.
func boundInode(line, network string, want netip.AddrPort) (string, bool) {
	f := strings.Fields(line)
	if len(f) < 10 {
		return "", false
	}
	const listening = "0A"
	if network == "tcp" && f[3] != listening {
		return "", false
	}
	hexa, port, ok := strings.Cut(f[1], ":")
	if !ok {
		return "", false
	}
	ip, err1 := strconv.ParseUint(hexa, 16, 32)
	p, err2 := strconv.ParseUint(port, 16, 16)
	if err1 != nil || err2 != nil || uint16(p) != want.Port() {
		return "", false
	}
	// The kernel prints the address as a number in the machine's own byte order.
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], uint32(ip))
	got := netip.AddrFrom4(b)
	return f[9], got == want.Addr() || got.IsUnspecified()
}

func socketOwner(inode string) int {
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*") // a constant pattern is never malformed
	want := "socket:[" + inode + "]"
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == want {
			pid, _ := strconv.Atoi(strings.Split(fd, "/")[2]) // digits, by the pattern
			return pid
		}
	}
	return 0
}
