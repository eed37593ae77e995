package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// namePattern is what a node or ring may be called: it ends up in file names,
// metrics and tables.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// LogLevels are the values of log.level.
func LogLevels() []string { return []string{"debug", "info", "warn", "error"} }

// LogFormats are the values of log.format.
func LogFormats() []string { return []string{"text", "json"} }

func oneOf(v string, allowed ...string) error {
	if slices.Contains(allowed, v) {
		return nil
	}
	return fmt.Errorf("%q is not allowed: want %s", v, strings.Join(allowed, " or "))
}

func inRange(v, lo, hi int) error {
	if v < lo || v > hi {
		return fmt.Errorf("%d is out of range: want %d to %d", v, lo, hi)
	}
	return nil
}

// checkWindow keeps what rests of sessions for hours out.
func checkWindow(d time.Duration) error {
	if d < 0 || d > time.Hour {
		return fmt.Errorf("%v is out of range: want 0s to 1h", d)
	}
	return nil
}

func notEmpty(v string) error {
	if v == "" {
		return errors.New("it is empty: give a path")
	}
	return nil
}

func checkName(v string) error {
	if v != "" && !namePattern.MatchString(v) {
		return fmt.Errorf("%q is not a name: want 1 to 63 letters, digits, '.', '_' or '-', starting with a letter or digit", v)
	}
	return nil
}

// maxLabels is the most labels of a node; they travel in its record.
const maxLabels = 32

func checkLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return fmt.Errorf("%d labels: want at most %d", len(labels), maxLabels)
	}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if !namePattern.MatchString(name) || len(labels[name]) > 63 {
			return fmt.Errorf("label %q = %q: want a name of 1 to 63 letters, digits, '.', '_' or '-', and a value of at most 63 bytes", name, labels[name])
		}
	}
	return nil
}

// devicePattern is how devices are called.
var devicePattern = regexp.MustCompile(`^(cpu|cuda:[0-9]{1,2})$`)

func checkDevice(v string) error {
	if !devicePattern.MatchString(v) {
		return fmt.Errorf("%q is not a device: want cpu, or cuda:N with N from 0", v)
	}
	return nil
}

// checkEach joins what is wrong with the entries.
func checkEach(list []string, check func(string) error) error {
	var errs []error
	for i, v := range list {
		if err := check(v); err != nil {
			errs = append(errs, fmt.Errorf("entry %d: %w", i+1, err))
		}
	}
	return errors.Join(errs...)
}

func checkHostPort(v string) error {
	host, port, err := net.SplitHostPort(v)
	if err != nil || host == "" {
		return fmt.Errorf("%q is not an address: want HOST:PORT", v)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%q has no valid port: want 1 to 65535", v)
	}
	return nil
}

// checkBind takes no names: what others are told must not depend on a resolver.
func checkBind(v string) error {
	if _, err := netip.ParseAddrPort(v); err == nil {
		return checkHostPort(v)
	}
	if host, _, err := net.SplitHostPort(v); err == nil && host != "" {
		if _, err := netip.ParseAddr(host); err != nil {
			return fmt.Errorf("%q has no IP address: want IP:PORT, such as 0.0.0.0:7946 (host names are not taken: /etc/hosts often maps them to 127.0.1.1)", v)
		}
		return checkHostPort(v)
	}
	return fmt.Errorf("%q is not an address: want IP:PORT", v)
}

func checkOptionalAddr(v string) error {
	if v == "" {
		return nil
	}
	ip, err := netip.ParseAddr(v)
	if err != nil {
		return fmt.Errorf("%q is not an IP address", v)
	}
	return reachable(v, ip)
}

// checkAdvertise refuses what no host can be reached at. Whether an interface or a
// network of the name is there, only the host knows.
func checkAdvertise(v string) error {
	ip, err := netip.ParseAddr(v)
	if at, portErr := netip.ParseAddrPort(v); portErr == nil {
		ip, err = at.Addr(), nil
	}
	if err != nil {
		return nil
	}
	return reachable(v, ip)
}

func reachable(v string, ip netip.Addr) error {
	if ip = ip.Unmap(); ip.IsUnspecified() || ip.IsMulticast() {
		return fmt.Errorf("%q is not one host's address: want one of this host that the others reach", v)
	}
	return nil
}

// checkAssign joins what is wrong with the entries.
func checkAssign(list []Assign) error {
	var errs []error
	for i, a := range list {
		if err := a.check(list[:i]); err != nil {
			errs = append(errs, fmt.Errorf("entry %d: %w", i+1, err))
		}
	}
	return errors.Join(errs...)
}

// check compares the entry with those before it too.
func (a Assign) check(before []Assign) error {
	switch {
	case a.Model == "":
		return errors.New("model is empty: give a GGUF file or a name found in models.dirs")
	case a.Layers.Lo < 0 || a.Layers.Hi <= a.Layers.Lo:
		return fmt.Errorf("layers lo = %d, hi = %d: want 0 <= lo < hi", a.Layers.Lo, a.Layers.Hi)
	}
	for _, b := range before {
		if a.Model == b.Model && a.Layers.Lo < b.Layers.Hi && b.Layers.Lo < a.Layers.Hi {
			return fmt.Errorf("layers %v of %s overlap %v, named before", a.Layers, a.Model, b.Layers)
		}
	}
	return nil
}

// crossCheck finds mistakes that no single key shows.
func (c *Config) crossCheck() []Problem {
	var out []Problem
	if c.Node.Role == RoleGateway && len(c.Models.Assign) > 0 {
		out = append(out, Problem{Key: "models.assign", with: []string{"node.role"}, Text: `a gateway holds no stages: remove it, or set node.role = "host"`})
	}
	if !c.Ring.Dev && c.Ring.Advertise == "" && isLoopback(c.Ring.Bind) {
		out = append(out, Problem{Key: "ring.bind", with: []string{"ring.dev", "ring.advertise"}, Text: fmt.Sprintf("%q is a loopback address, where no other host reaches this node: bind another one, or set ring.dev = true for a mesh on one machine", c.Ring.Bind)})
	}
	if ip, err := netip.ParseAddr(c.Ring.Advertise); !c.Ring.Dev && err == nil && ip.IsLoopback() {
		out = append(out, Problem{Key: "ring.advertise", with: []string{"ring.dev"}, Text: fmt.Sprintf("%q is a loopback address, where no other host reaches this node: name another one, or set ring.dev = true for a mesh on one machine", c.Ring.Advertise)})
	}
	out = append(out, c.checkPorts()...)
	if c.API.KeysFile == "" && !isLoopback(c.API.Listen) {
		out = append(out, Problem{Key: "api.listen", with: []string{"api.keys_file"}, Text: fmt.Sprintf("%q is reachable from other hosts, which needs API keys: set api.keys_file (kevlard keygen --api NAME makes a key), or listen on 127.0.0.1", c.API.Listen)})
	}
	switch {
	case c.API.TLSCert != "" && c.API.TLSKey == "":
		out = append(out, Problem{Key: "api.tls_cert", with: []string{"api.tls_key"}, Text: "TLS needs the certificate's key too: set api.tls_key"})
	case c.API.TLSKey != "" && c.API.TLSCert == "":
		out = append(out, Problem{Key: "api.tls_key", with: []string{"api.tls_cert"}, Text: "TLS needs the certificate too: set api.tls_cert"})
	}
	return out
}

// checkPorts finds listeners that would be in each other's way.
func (c *Config) checkPorts() []Problem {
	type listener struct{ key, addr string }
	meshHost, _, _ := net.SplitHostPort(c.Mesh.Bind) // checked before
	all := []listener{
		{"ring.bind", c.Ring.Bind},
		{"mesh.bind", c.Mesh.Bind},
		{"mesh.bulk_port", net.JoinHostPort(meshHost, strconv.Itoa(c.Mesh.BulkPort))},
		{"api.listen", c.API.Listen},
	}
	var out []Problem
	for i, l := range all {
		for _, first := range all[:i] {
			if collide(l.addr, first.addr) {
				out = append(out, Problem{Key: l.key, with: []string{first.key, "mesh.bind"}, Text: fmt.Sprintf("%s is taken by %s = %s: give each its own port", l.addr, first.key, first.addr)})
				break
			}
		}
	}
	return out
}

// collide reports whether two TCP listeners cannot both be there.
func collide(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB {
		return false
	}
	everywhere := func(host string) bool {
		ip, err := netip.ParseAddr(host)
		return err == nil && ip.IsUnspecified()
	}
	return hostA == hostB || everywhere(hostA) || everywhere(hostB)
}

func isLoopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

func checkTransport(v string) error {
	return oneOf(v, TransportAuto, TransportTCP, TransportRDMA)
}

// minBandwidth is the least that the TCP transport can keep to.
const minBandwidth = 64 << 10

// minFetchBandwidth is the least at which a chunk of weights comes in time.
const minFetchBandwidth = 256 << 10

func checkFetchBandwidth(v int) error {
	if v == 0 || v >= minFetchBandwidth {
		return nil
	}
	return fmt.Errorf("%d is out of range: want 0, for no cap, or at least %d", v, minFetchBandwidth)
}

func checkBandwidth(v int) error {
	if v == 0 || v >= minBandwidth {
		return nil
	}
	return fmt.Errorf("%d is out of range: want 0, for no cap, or at least %d", v, minBandwidth)
}
