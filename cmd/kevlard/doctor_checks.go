package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

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
	if d.cfg.Ring.SecretFile == "" && d.status != nil {
		return one(check, statusWarn, "name the daemon's file: kevlard doctor --config FILE",
			"the daemon has one, and ring.secret_file is not set here: it runs with another configuration than doctor was given, and no peer is tried over UDP")
	}
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
				status, fix := unfit(err)
				out = append(out, one(check, status, fix, "%v", err)...)
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

// unfit tells what is broken from what the daemon merely leaves out.
func unfit(err error) (status, fix string) {
	switch {
	case errors.Is(err, errNotServed):
		return statusWarn, "move it away, or put a file of the same model there in a form that is served"
	case errors.Is(err, fs.ErrPermission):
		return statusFail, "let the daemon's user read it: chgrp kevlard, chmod g+r, and g+x on its directories"
	}
	return statusFail, "fetch the file again, or move it away; kevlard model inspect tells more"
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

// unmapped parses an address of the ring.
func unmapped(addr string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(addr)
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), err
}
