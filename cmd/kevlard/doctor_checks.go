package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"github.com/kevlard/kevlard/daemon"
	"github.com/kevlard/kevlard/membership"
)

const (
	// fewFiles and enoughFiles are open files: sessions, peers, clients and weights
	// together take one each.
	fewFiles    = 1024
	enoughFiles = 16384
	// littleSpace and enoughSpace are free bytes for the data directory.
	littleSpace = 64 << 20
	enoughSpace = 1 << 30
	// littleMemory is too little for a daemon with an engine of the smallest models.
	littleMemory = 512 << 20
	// muchClockError is what makes logs of several hosts hard to read together.
	muchClockError = time.Second
)

func one(check, status, fix, format string, args ...any) []finding {
	return []finding{{check, status, fmt.Sprintf(format, args...), fix}}
}

func (d *doctor) checkDaemon(context.Context) []finding {
	const check = "daemon"
	switch {
	case d.status != nil && d.status.Ready:
		return one(check, statusOK, "", "%s runs, pid %d, ready, version %s", d.status.Node, d.status.PID, d.status.Version)
	case d.status != nil:
		return one(check, statusWarn, "kevlard status says what to do", "%s runs, pid %d, not ready: %s", d.status.Node, d.status.PID, d.status.Reason)
	case errors.Is(d.why, api.ErrNoDaemon):
		return one(check, statusWarn, "start it (systemctl start kevlard), and run doctor again", "none answers at %s: no peer can be tried", d.cfg.Control.Socket)
	}
	return one(check, statusFail, "see its log: journalctl -u kevlard", "it was asked and did not answer as it should: %v", d.why)
}

func (d *doctor) checkSecret(context.Context) []finding {
	const check = "secret"
	secret, err := d.probe.secret(d.cfg.Ring.SecretFile)
	if errors.Is(err, fs.ErrPermission) {
		return one(check, statusWarn, "run doctor as root or as the daemon's user", "%s cannot be read by this user: no peer is tried over UDP", d.cfg.Ring.SecretFile)
	}
	if err != nil {
		what := err.Error() // its end says what to do
		i := strings.Index(what, ": make one")
		if i < 0 {
			i = strings.LastIndex(what, ": ")
		}
		if i < 0 {
			return one(check, statusFail, "", "%s", what)
		}
		return one(check, statusFail, what[i+2:], "%s", what[:i])
	}
	d.secret = secret
	held, err := daemon.Secrets(d.cfg.Node.DataDir, secret)
	switch {
	case errors.Is(err, fs.ErrPermission): // of another user; the ring's may still be this one
	case err != nil:
		return one(check, statusFail, "put the ring's secret in [ring] secret_file and remove that file", "%v", err)
	case !bytes.Equal(held[0], secret):
		d.secret = held[0]
		return one(check, statusWarn, "copy the ring's present secret to it: kevlard keys list says which that is",
			"%s holds %s, and kevlard keys put %s in use", d.cfg.Ring.SecretFile, membership.SecretID(secret), membership.SecretID(held[0]))
	}
	return one(check, statusOK, "", "%s holds one, and only its owner can read it", d.cfg.Ring.SecretFile)
}

func (d *doctor) checkAddress(context.Context) []finding {
	const check = "address"
	if m, _, ok := d.self(); ok {
		return one(check, statusOK, "", "others reach this node at %s, its mesh at %s", m.Addr, m.MeshAddr)
	}
	addr, err := membership.Advertise(d.cfg.Ring.Advertise, d.cfg.Ring.Bind, d.cfg.Ring.Dev, d.probe.interfaces)
	if err != nil {
		return one(check, statusFail, "set [ring] advertise to an address, interface or CIDR that the other hosts reach", "%v", err)
	}
	return one(check, statusOK, "", "others will be told %s", addr)
}

// checkPorts binds what the daemon would, if none runs.
func (d *doctor) checkPorts(context.Context) []finding {
	const check = "ports"
	if d.status != nil {
		return one(check, statusOK, "", "the daemon has them")
	}
	var out []finding
	for _, p := range []struct{ network, addr, key string }{
		{"udp", d.cfg.Ring.Bind, "[ring] bind"},
		{"tcp", d.cfg.Ring.Bind, "[ring] bind"},
		{"tcp", d.cfg.Mesh.Bind, "[mesh] bind"},
		{"tcp", bulkListen(d.cfg), "[mesh] bulk_port"},
		{"tcp", d.cfg.API.Listen, "[api] listen"},
	} {
		err := d.probe.listen(p.network, p.addr)
		name := strings.ToUpper(p.network) + " " + p.addr
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			out = append(out, one(check, statusFail, "find who has it with ss -lntup, or set "+p.key, "%s is taken", name)...)
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			out = append(out, one(check, statusFail, "set "+p.key+" to an address of this host", "%s is no address of this host", name)...)
		case err != nil:
			out = append(out, one(check, statusFail, "set "+p.key+" to one that this user may bind", "%s: %v", name, err)...)
		}
	}
	if len(out) == 0 {
		return one(check, statusOK, "", "free: UDP and TCP %s, TCP %s, TCP %s, TCP %s", d.cfg.Ring.Bind, d.cfg.Mesh.Bind, bulkListen(d.cfg), d.cfg.API.Listen)
	}
	return out
}

func (d *doctor) checkModels(context.Context) []finding {
	const check = "models"
	var out []finding
	good := 0
	for _, dir := range d.cfg.Models.Dirs {
		paths, err := d.probe.modelFiles(dir)
		if err != nil {
			out = append(out, one(check, statusWarn, "make the directory, or take it out of [models] dirs", "%v", err)...)
		}
		for _, path := range paths {
			if _, err := d.probe.header(path); err != nil {
				out = append(out, one(check, statusFail, "fetch the file again, or move it away; kevlard model inspect tells more", "%v", err)...)
				continue
			}
			good++
		}
	}
	for _, a := range d.cfg.Models.Assign {
		if !filepath.IsAbs(a.Model) && filepath.Ext(a.Model) != ".gguf" {
			continue // a name, which only the digests of the files tell
		}
		if _, err := d.probe.header(a.Model); err != nil {
			out = append(out, one(check, statusFail, "put the file there, or name another in [models] assign", "%v", err)...)
			continue
		}
		good++
	}
	switch {
	case good > 0:
		out = slices.Concat(one(check, statusOK, "", "the headers of %d files are sound (kevlard model verify FILE reads all of one)", good), out)
	case len(out) == 0 && d.cfg.Node.Role == config.RoleHost:
		out = one(check, statusWarn, "copy GGUF files to a directory of [models] dirs", "there are none in %v", d.cfg.Models.Dirs)
	}
	return out
}

// checkClock only reports: no decision compares the clocks of two hosts.
func (d *doctor) checkClock(context.Context) []finding {
	const check, fix = "clock", "run chrony or systemd-timesyncd; nothing breaks without, but logs of several hosts are hard to read together"
	most, synchronised, err := d.probe.clock()
	switch {
	case err != nil:
		return one(check, statusWarn, fix, "%v", err)
	case !synchronised:
		return one(check, statusWarn, fix, "nothing keeps it right")
	case most > muchClockError:
		return one(check, statusWarn, fix, "it may be wrong by %v", most.Round(time.Millisecond))
	}
	return one(check, statusOK, "", "it is right within %v", most.Round(time.Millisecond))
}

// limits returns a limit of the daemon, or of this process, and whose it is.
func (d *doctor) limits(resource int) (value uint64, whose string, err error) {
	if d.status == nil {
		value, err = d.probe.limit(0, resource)
		return value, "this shell", err
	}
	value, err = d.probe.limit(d.status.PID, resource)
	return value, "the daemon", err
}

func (d *doctor) checkMemlock(context.Context) []finding {
	const check, fix = "memlock", "set LimitMEMLOCK=infinity in the unit, as the shipped one does (limits.conf does not apply to services); only RDMA needs it"
	n, whose, err := d.limits(limitMemlock)
	switch {
	case err != nil:
		return one(check, statusWarn, "run doctor as root", "%v", err)
	case n != limitInfinity && d.cfg.Mesh.Transport == config.TransportRDMA:
		return one(check, statusFail, fix, "%s may lock %s of memory, and [mesh] transport is rdma", whose, byteSize(int64(min(n, 1<<62))))
	case n != limitInfinity:
		return one(check, statusWarn, fix, "%s may lock %s of memory", whose, byteSize(int64(min(n, 1<<62))))
	}
	return one(check, statusOK, "", "%s may lock all memory", whose)
}

func (d *doctor) checkFiles(context.Context) []finding {
	const check, fix = "nofile", "set LimitNOFILE=1048576 in the unit, as the shipped one does"
	n, whose, err := d.limits(limitFiles)
	switch {
	case err != nil:
		return one(check, statusWarn, "run doctor as root", "%v", err)
	case n < fewFiles:
		return one(check, statusFail, fix, "%s may open %d files", whose, n)
	case n < enoughFiles:
		return one(check, statusWarn, fix, "%s may open %d files, which many clients use up", whose, n)
	}
	return one(check, statusOK, "", "%s may open %d files", whose, n)
}

func (d *doctor) checkDisk(context.Context) []finding {
	const check, fix = "disk", "make room, or set [node] data_dir to another file system"
	dir := d.cfg.Node.DataDir
	free, total, err := d.probe.space(existing(dir))
	what := fmt.Sprintf("%s free of %s for %s", byteSize(int64(free)), byteSize(int64(total)), dir)
	switch {
	case err != nil:
		return one(check, statusWarn, fix, "%v", err)
	case free < littleSpace:
		return one(check, statusFail, fix, "%s", what)
	case free < enoughSpace:
		return one(check, statusWarn, fix, "%s", what)
	}
	return one(check, statusOK, "", "%s", what)
}

// checkMemory compares what the configuration asks for with what the control group allows.
func (d *doctor) checkMemory(context.Context) []finding {
	const check, fix = "cgroup", "raise MemoryMax in the unit (systemctl edit kevlard), or lower [engine] memory_bytes and [kv] ram_bytes"
	pid, whose := 0, "this shell"
	if d.status != nil {
		pid, whose = d.status.PID, "the daemon"
	}
	limit, err := d.probe.memory(pid)
	wanted := int64(d.cfg.KV.RAMBytes) + int64(d.cfg.Engine.MemoryBytes)*int64(max(1, len(d.cfg.Engine.Devices)))
	switch {
	case err != nil:
		return one(check, statusWarn, "run doctor as root, on the host itself", "%v", err)
	case limit == math.MaxInt64:
		return one(check, statusOK, "", "no control group limits the memory of %s", whose)
	case limit < wanted:
		return one(check, statusFail, fix, "the control group of %s allows %s of memory, [engine] memory_bytes and [kv] ram_bytes are %s: it would be killed", whose, byteSize(limit), byteSize(wanted))
	case limit < littleMemory:
		return one(check, statusWarn, fix, "the control group of %s allows %s of memory, which is little", whose, byteSize(limit))
	}
	return one(check, statusOK, "", "the control group of %s allows %s of memory, of which %s are spoken for", whose, byteSize(limit), byteSize(wanted))
}

// unmapped parses an address of the ring.
func unmapped(addr string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(addr)
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), err
}
