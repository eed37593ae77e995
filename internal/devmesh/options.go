package devmesh

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/kevlard/kevlard"
)

// DefaultBasePort is the API port of every node unless Options says otherwise.
const DefaultBasePort = 18080

// NoStandbys is the value of Options.Standbys with which no copies are kept.
const NoStandbys = -1

// Options says what to start. The zero value of a field is its default.
type Options struct {
	Exe      string        // the kevlard binary; required
	Nodes    int           // hosts; default 8
	Stages   int           // stages per pipeline; default 4, or Nodes if that is less
	Gateways int           // default 0
	Auto     bool          // hosts take the stages that the mesh gives them; Stages does not count
	Empty    int           // the last so many hosts have no model file; they fetch what they are given
	Model    string        // path of a GGUF; default the bundled small model
	Dir      string        // where all files go; default a temporary directory that Close removes
	BasePort int           // API port; the next three are gossip, mesh and bulk; default 18080
	Restart  time.Duration // a dead daemon is started again after this; 0 is never
	Standbys int           // copies of each session's KV, 1; NoStandbys for none; default 1
	Hot      bool          // copies wait in the cells of engines, [kv] standby = "hot"
	// GatewayStandbys is what each gateway has as [kv] standbys instead, 0 for none:
	// the owner of a session decides how many copies of it are kept.
	GatewayStandbys []int
	// SkipAddresses is how many addresses from 127.0.0.11 on are left out, for several
	// meshes of which each node shall have an address of its own.
	SkipAddresses int
	// GroupBase, when above 0, runs node i of All in the group GroupBase+i, so that a
	// firewall can tell the packets of one daemon from those of another. Root only.
	GroupBase int
	Threads   int      // of each engine; default 1
	Cells     int      // KV positions of each stage; default as the daemon chooses
	LogLevel  string   // of the daemons; default info
	Env       []string // added to the daemons' environment, for tests
}

func (o Options) withDefaults() Options {
	if o.Nodes == 0 {
		o.Nodes = 8
	}
	if o.Stages == 0 {
		o.Stages = min(4, o.Nodes)
	}
	if o.BasePort == 0 {
		o.BasePort = DefaultBasePort
	}
	if o.Threads == 0 {
		o.Threads = 1
	}
	if o.Standbys == 0 {
		o.Standbys = 1
	}
	if o.LogLevel == "" {
		o.LogLevel = "info"
	}
	return o
}

// validate reports every problem of o, each naming the flag and the allowed
// values. Defaults must have been filled in.
func (o Options) validate() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(o.Exe != "", "no kevlard binary given")
	bad(o.Nodes >= 1, "--nodes %d: want at least 1", o.Nodes)
	bad(o.Empty >= 0 && o.Empty <= o.Nodes && (o.Auto || o.Empty == 0), "%d hosts without a model: want 0 to %d, and only hosts that are given their stages", o.Empty, o.Nodes)
	bad(o.Gateways >= 0, "--gateways %d: want 0 or more", o.Gateways)
	bad(o.SkipAddresses >= 0 && o.SkipAddresses+o.Nodes+o.Gateways <= maxNodes, "%d addresses skipped: want at least 0, and at most %d with all nodes", o.SkipAddresses, maxNodes)
	bad(o.Nodes+o.Gateways <= maxNodes, "--nodes %d and --gateways %d: want at most %d together", o.Nodes, o.Gateways, maxNodes)
	bad(o.Stages >= 1 && o.Stages <= max(o.Nodes, 1), "--stages %d: want 1 to %d (--nodes)", o.Stages, o.Nodes)
	bad(o.BasePort >= 1024 && o.BasePort+3 <= 65535, "--base-port %d: want 1024 to 65532", o.BasePort)
	bad(o.Restart >= 0, "--restart %s: want 0 or more", o.Restart)
	bad(o.Standbys == 1 || o.Standbys == NoStandbys, "--standbys %d: want 0 or 1", o.Standbys)
	bad(len(o.GatewayStandbys) <= o.Gateways, "standbys of %d gateways given: want at most %d (--gateways)", len(o.GatewayStandbys), o.Gateways)
	bad(o.GroupBase >= 0, "group base %d: want 0 or more", o.GroupBase)
	bad(o.Threads >= 1, "threads %d: want at least 1", o.Threads)
	if len(errs) == 0 {
		return nil
	}
	return &OptionsError{errors.Join(errs...)}
}

// OptionsError says that other options would have worked.
type OptionsError struct{ err error }

// Error implements error.
func (e *OptionsError) Error() string { return e.err.Error() }

// Unwrap gives errors.Is and errors.As what is inside.
func (e *OptionsError) Unwrap() error { return e.err }

func badOption(format string, args ...any) error {
	return &OptionsError{fmt.Errorf(format, args...)}
}

// spec is one daemon's place in the mesh.
type spec struct {
	name   string
	role   string // host or gateway
	dir    string
	ip     string
	base   int
	layers kevlard.Layers // of a host
	auto   bool           // its stages are those that the mesh gives it, not layers
	empty  bool           // it has no model file
	kv     table          // [kv]
	group  int            // group id of the daemon; 0 is ours
}

func (s spec) addr(offset int) string {
	return net.JoinHostPort(s.ip, strconv.Itoa(s.base+offset))
}

func (s spec) socket() string { return filepath.Join(s.dir, "kevlard.sock") }
func (s spec) log() string    { return filepath.Join(s.dir, "kevlard.log") }
func (s spec) config() string { return filepath.Join(s.dir, "kevlard.toml") }

// plan places o's nodes, hosts first. layers is the number of the model's layers.
func plan(o Options, dir string, layers int) ([]spec, error) {
	if o.Stages > layers {
		return nil, badOption("--stages %d: the model has %d layers, so want 1 to %d", o.Stages, layers, layers)
	}
	split := splitLayers(layers, o.Stages)
	specs := make([]spec, 0, o.Nodes+o.Gateways)
	for i := range o.Nodes + o.Gateways {
		s := spec{
			name: fmt.Sprintf("node-%d", i+1),
			role: "host",
			ip:   fmt.Sprintf("127.0.0.%d", 11+o.SkipAddresses+i),
			base: o.BasePort,
		}
		if i < o.Nodes {
			s.auto, s.empty = o.Auto, i >= o.Nodes-o.Empty
			s.layers = split[i%o.Stages]
		} else {
			s.name, s.role = fmt.Sprintf("gateway-%d", i-o.Nodes+1), "gateway"
		}
		s.kv = o.kv(i - o.Nodes)
		if o.GroupBase > 0 {
			s.group = o.GroupBase + i
		}
		s.dir = filepath.Join(dir, s.name)
		if n := len(s.socket()); n > maxSocketPath {
			return nil, badOption("directory %s: the path of a control socket in it has %d bytes, and the system allows %d: choose a shorter one", dir, n, maxSocketPath)
		}
		specs = append(specs, s)
	}
	return specs, nil
}

// kv returns the table [kv] of gateway i, from 0, or of a host, which is below 0.
func (o Options) kv(gateway int) table {
	if gateway >= 0 && gateway < len(o.GatewayStandbys) {
		return table{"standbys": o.GatewayStandbys[gateway]}
	}
	t := table{"standbys": max(0, o.Standbys)}
	if o.Hot && gateway < 0 {
		t["standby"] = "hot"
	}
	return t
}

// splitLayers cuts layers into n ranges whose lengths differ by at most one, the
// longer ones first.
func splitLayers(layers, n int) []kevlard.Layers {
	out := make([]kevlard.Layers, n)
	at := 0
	for i := range out {
		size := layers / n
		if i < layers%n {
			size++
		}
		out[i] = kevlard.Layers{Lo: at, Hi: at + size}
		at += size
	}
	return out
}
