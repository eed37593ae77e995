package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Field is one key of the configuration.
type Field struct {
	Key   string // "ring.bind"
	Doc   string
	Short string // a short flag name beside the long one, or empty

	dst   any          // *string, *bool, *int, *[]string, *map[string]string or *[]Assign; nil: no effect yet
	check func() error // of the value behind dst; nil: all values are fine
}

// Inert reports whether the key is accepted but has no effect yet.
func (f Field) Inert() bool { return f.dst == nil }

// Flag returns the name of the key's command-line flag.
func (f Field) Flag() string { return strings.NewReplacer(".", "-", "_", "-").Replace(f.Key) }

// Env returns the name of the key's environment variable.
func (f Field) Env() string {
	return "KEVLARD_" + strings.ToUpper(strings.ReplaceAll(f.Key, ".", "_"))
}

// IsBool reports whether the key's flag takes no value.
func (f Field) IsBool() bool { _, ok := f.dst.(*bool); return ok }

// namePattern is what a node or ring may be called: it ends up in file names,
// metrics and tables.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// Fields lists all keys, each bound to its place in c.
func (c *Config) Fields() []Field {
	return []Field{
		{Key: "node.name", Short: "name", dst: &c.Node.Name, check: func() error { return checkName(c.Node.Name) }, Doc: "name of this node, unique in the ring (default: host name)"},
		{Key: "node.role", Short: "role", dst: &c.Node.Role, check: func() error { return oneOf(c.Node.Role, RoleHost, RoleGateway) }, Doc: "host (holds stages) or gateway (owns sessions, no engine)"},
		{Key: "node.data_dir", Short: "data-dir", dst: &c.Node.DataDir, check: func() error { return notEmpty(c.Node.DataDir) }, Doc: "directory of identity, remembered peers and caches"},
		{Key: "node.labels", dst: &c.Node.Labels, check: func() error { return checkLabels(c.Node.Labels) }, Doc: "labels shown in member lists: NAME=VALUE, comma separated"},
		{Key: "node.zone", dst: &c.Node.Zone, check: func() error { return checkName(c.Node.Zone) }, Doc: "zone shown in member lists"},
		{Key: "ring.bind", dst: &c.Ring.Bind, check: func() error { return checkHostPort(c.Ring.Bind) }, Doc: "gossip address, UDP and TCP"},
		{Key: "ring.advertise", dst: &c.Ring.Advertise, Doc: "address, interface or CIDR at which others reach this node"},
		{Key: "ring.join", Short: "join", dst: &c.Ring.Join, check: func() error { return checkEach(c.Ring.Join, checkHostPort) }, Doc: "gossip addresses of some members, comma separated"},
		{Key: "ring.secret_file", dst: &c.Ring.SecretFile, Doc: "file with the cluster secret (see kevlard keygen)"},
		{Key: "ring.profile", dst: &c.Ring.Profile, check: func() error { return oneOf(c.Ring.Profile, "lan", "wan") }, Doc: "lan or wan"},
		{Key: "ring.name", dst: &c.Ring.Name, check: func() error { return checkName(c.Ring.Name) }, Doc: "name of the ring"},
		{Key: "ring.dev", Short: "dev", dst: &c.Ring.Dev, Doc: "a mesh on one machine: loopback addresses may be advertised"},
		{Key: "mesh.bind", dst: &c.Mesh.Bind, check: func() error { return checkHostPort(c.Mesh.Bind) }, Doc: "mesh address, TCP"},
		{Key: "mesh.fabric", dst: &c.Mesh.Fabric, check: func() error { return checkOptionalAddr(c.Mesh.Fabric) }, Doc: "address at which others reach the mesh, if not the advertised one"},
		{Key: "mesh.bulk_port", dst: &c.Mesh.BulkPort, check: func() error { return inRange(c.Mesh.BulkPort, 1, 65535) }, Doc: "TCP port of bulk transfers"},
		{Key: "mesh.transport", dst: &c.Mesh.Transport, check: func() error { return oneOf(c.Mesh.Transport, "auto", "tcp", "rdma") }, Doc: "how bulk transfers travel: auto (the best that both ends have), tcp or rdma"},
		{Key: "mesh.plain", dst: &c.Mesh.Plain, Doc: "bulk transfers over TCP without encryption, on a trusted fabric only; the same on all nodes"},
		{Key: "api.listen", dst: &c.API.Listen, check: func() error { return checkHostPort(c.API.Listen) }, Doc: "address of the HTTP API; one that other hosts reach needs api.keys_file"},
		{Key: "api.max_queue", dst: &c.API.MaxQueue, check: func() error { return inRange(c.API.MaxQueue, 1, 65536) }, Doc: "requests in flight; more are answered 429"},
		{Key: "api.keys_file", dst: &c.API.KeysFile, Doc: "file with the API keys (see kevlard keygen --api); read again at SIGHUP"},
		{Key: "api.tls_cert", dst: &c.API.TLSCert, Doc: "PEM file with the API's certificate; read again at SIGHUP"},
		{Key: "api.tls_key", dst: &c.API.TLSKey, Doc: "PEM file with the certificate's key; read again at SIGHUP"},
		{Key: "api.resume_window"},
		{Key: "models.dirs", dst: &c.Models.Dirs, check: func() error { return checkEach(c.Models.Dirs, notEmpty) }, Doc: "directories with GGUF files, comma separated"},
		{Key: "models.assign", dst: &c.Models.Assign, check: func() error { return checkAssign(c.Models.Assign) }, Doc: "stages of this node: MODEL:LO-HI, comma separated"},
		{Key: "models.serve"},
		{Key: "kv.block_tokens"},
		{Key: "kv.ram_bytes"},
		{Key: "kv.nvme_dir"},
		{Key: "kv.nvme_bytes"},
		{Key: "kv.standbys"},
		{Key: "kv.standby"},
		{Key: "kv.replicate_tokens"},
		{Key: "kv.replicate_ms"},
		{Key: "kv.bandwidth", dst: &c.KV.Bandwidth, check: func() error { return bandwidth(c.KV.Bandwidth) }, Doc: "most bytes a second that this node sends in bulk, over all peers; 0: no cap"},
		{Key: "kv.high_water"},
		{Key: "kv.shed_water"},
		{Key: "kv.checkpoint_url"},
		{Key: "kv.checkpoint_tokens"},
		{Key: "engine.threads", dst: &c.Engine.Threads, check: func() error { return inRange(c.Engine.Threads, 0, 256) }, Doc: "compute threads of one engine; 0: half of the cores, shared among the engines"},
		{Key: "engine.cells", dst: &c.Engine.Cells, check: func() error { return inRange(c.Engine.Cells, 0, 1<<24) }, Doc: "KV positions of one stage, all sessions together; 0: what fits engine.memory_bytes"},
		{Key: "engine.memory_bytes", dst: &c.Engine.MemoryBytes, check: func() error { return inRange(c.Engine.MemoryBytes, 0, math.MaxInt) }, Doc: "KV memory of one stage in bytes; touched only as sessions use it; 0: 256 MiB"},
		{Key: "engine.devices"},
		{Key: "engine.backend_dir"},
		{Key: "control.socket", dst: &c.Control.Socket, Doc: "path of the control socket"},
		{Key: "control.group"},
		{Key: "log.level", dst: &c.Log.Level, check: func() error { return oneOf(c.Log.Level, "debug", "info", "warn", "error") }, Doc: "debug, info, warn or error"},
		{Key: "log.format", dst: &c.Log.Format, check: func() error { return oneOf(c.Log.Format, "text", "json") }, Doc: "text or json"},
	}
}

// openTables are known by name only: what they will hold is not settled.
var openTables = []string{"metrics", "trace"}

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

// minBandwidth is the smallest cap in bytes a second; under it a transfer would look
// stalled to its receiver.
const minBandwidth = 64 << 10

func bandwidth(v int) error {
	if v != 0 && v < minBandwidth {
		return fmt.Errorf("%d is too small: want 0 (no cap) or at least %d bytes a second", v, minBandwidth)
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

func checkEach(list []string, check func(string) error) error {
	for i, v := range list {
		if err := check(v); err != nil {
			return fmt.Errorf("entry %d: %w", i+1, err)
		}
	}
	return nil
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

func checkOptionalAddr(v string) error {
	if v == "" {
		return nil
	}
	if _, err := netip.ParseAddr(v); err != nil {
		return fmt.Errorf("%q is not an IP address", v)
	}
	return nil
}

func checkAssign(list []Assign) error {
	for i, a := range list {
		switch {
		case a.Model == "":
			return fmt.Errorf("entry %d: model is empty: give a GGUF file or a name found in models.dirs", i+1)
		case a.Layers.Lo < 0 || a.Layers.Hi <= a.Layers.Lo:
			return fmt.Errorf("entry %d: layers lo = %d, hi = %d: want 0 <= lo < hi", i+1, a.Layers.Lo, a.Layers.Hi)
		}
		for _, b := range list[:i] {
			if a.Model == b.Model && a.Layers.Lo < b.Layers.Hi && b.Layers.Lo < a.Layers.Hi {
				return fmt.Errorf("entry %d: layers %v of %s overlap %v, named before", i+1, a.Layers, a.Model, b.Layers)
			}
		}
	}
	return nil
}

// crossCheck finds mistakes that no single key shows.
func (c *Config) crossCheck() []Problem {
	var out []Problem
	if c.Node.Role == RoleGateway && len(c.Models.Assign) > 0 {
		out = append(out, Problem{Key: "models.assign", Text: `a gateway holds no stages: remove it, or set node.role = "host"`})
	}
	if !c.Ring.Dev && c.Ring.Advertise == "" && isLoopback(c.Ring.Bind) {
		out = append(out, Problem{Key: "ring.bind", Text: fmt.Sprintf("%q is a loopback address, where no other host reaches this node: bind another one, or set ring.dev = true for a mesh on one machine", c.Ring.Bind)})
	}
	if ip, err := netip.ParseAddr(c.Ring.Advertise); !c.Ring.Dev && err == nil && ip.IsLoopback() {
		out = append(out, Problem{Key: "ring.advertise", Text: fmt.Sprintf("%q is a loopback address, where no other host reaches this node: name another one, or set ring.dev = true for a mesh on one machine", c.Ring.Advertise)})
	}
	if c.API.KeysFile == "" && !isLoopback(c.API.Listen) {
		out = append(out, Problem{Key: "api.listen", Text: fmt.Sprintf("%q is reachable from other hosts, which needs API keys: set api.keys_file (kevlard keygen --api NAME makes a key), or listen on 127.0.0.1", c.API.Listen)})
	}
	switch {
	case c.API.TLSCert != "" && c.API.TLSKey == "":
		out = append(out, Problem{Key: "api.tls_cert", Text: "TLS needs the certificate's key too: set api.tls_key"})
	case c.API.TLSKey != "" && c.API.TLSCert == "":
		out = append(out, Problem{Key: "api.tls_key", Text: "TLS needs the certificate too: set api.tls_cert"})
	}
	return out
}

func isLoopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
