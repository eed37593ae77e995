package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"

	"github.com/hashicorp/memberlist"
	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/kvstream/pace"
	"github.com/kevlard/kevlard/membership"
	"github.com/kevlard/kevlard/mesh"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
	"github.com/kevlard/kevlard/weights"
)

// Config describes one daemon. The zero value of a field without "required" is
// its default.
type Config struct {
	// Name is the node's name, unique in the ring; required. 1 to 64 of letters,
	// digits and . - _.
	Name kevlard.NodeID
	// Role is "host" (default; serves the stages of Assigned) or "gateway" (owns
	// sessions, has no engine).
	Role string
	// Ring names the ring. Default "default".
	Ring string
	// Secret is the cluster secret, 32 bytes; required.
	Secret []byte
	// DataDir holds the node key and the remembered peers; required unless
	// Deps.Key is given. Without it nothing is remembered.
	DataDir string

	// GossipBind is the ip:port for gossip, UDP and TCP. Default "0.0.0.0:7946".
	GossipBind string
	// GossipAdvertise is what others use for it: an address, interface or CIDR,
	// with or without port. Default: the address of GossipBind, or the one
	// routable address of the host.
	GossipAdvertise string
	// Join lists gossip addresses of other nodes; three or more are best.
	Join []string
	// Profile is "lan" (default) or "wan", see package membership.
	Profile string

	// MeshListen is the ip:port for the mesh. Default "0.0.0.0:7947".
	MeshListen string
	// MeshAdvertise is like GossipAdvertise.
	MeshAdvertise string
	// APIAddr is the host:port that the HTTP API listens on. Others are told it, with
	// the ring's address where it is unspecified, and nothing where it is a loopback
	// one that they can't reach. Empty: none.
	APIAddr string
	// APITLS says that the API speaks HTTPS.
	APITLS bool

	// BulkListen is the ip:port where KV from peers is taken. Empty: this node keeps
	// no copies, and what its stages compute has none. Others are told its port with
	// the mesh's address.
	BulkListen string
	// BulkTransport is TransportAuto (default), TransportTCP or TransportRDMA.
	BulkTransport string
	// BulkPlain turns encryption of KV on the way off, for a trusted fabric. It must
	// be the same on all nodes.
	BulkPlain bool
	// BulkBandwidth caps the KV that this node sends, in bytes a second. Default: no cap.
	BulkBandwidth int64
	// WeightsBandwidth caps the weights that this node sends to others, and as many that
	// it fetches, in bytes a second. Default: no cap.
	WeightsBandwidth int64
	// KV bounds the copies that are kept here.
	KV index.Config
	// Standbys is how many copies of the KV of sessions owned here are kept, 0
	// (default) or 1.
	Standbys int
	// Control is the path of the control socket, shown in member lists.
	Control string

	// Assigned lists the stages of a host.
	Assigned []AssignedStage
	// Auto makes a host take the stages that the mesh's plan gives it, of the models that
	// it is offered (Daemon.Offer), within what Capacity says of its devices.
	Auto     bool
	Capacity topology.Capacity
	// Goal and Settle are the plan's; the same on all nodes.
	Goal   topology.Goal
	Settle topology.Settle
	// Threads is the number of compute threads of each engine. Default 1.
	Threads int

	// Zone and Labels are shown in member lists.
	Zone   string
	Labels map[string]string
	// Version is that of the build.
	Version string
	// Protocol is the versions of the mesh protocol that are spoken. Default: all that this
	// build knows; others are for tests of rings of several builds.
	Protocol mesh.Versions
	// Dev allows loopback addresses to be advertised.
	Dev bool
	// NotRun lists what of this configuration was never run by those who built it; shown in
	// the status.
	NotRun []string

	// Timing and Limits are the decision code's own; see package node.
	Timing node.Timing
	Limits node.Limits
}

// transport names how KV is moved, for metrics.
func (c Config) transport() string {
	if c.BulkPlain {
		return "tcp-plain"
	}
	return "tcp-tls"
}

// AssignedStage is one stage that this node is configured to hold.
type AssignedStage struct {
	Model topology.Model
	// Path is the model file, for the launcher.
	Path   string
	Layers kevlard.Layers
	// Width is the bytes of one row of hidden state.
	Width int
	// CellsWanted is the number of KV positions to ask of the engine. Default
	// four sessions of the model's whole context.
	CellsWanted int
	// Device is the index of the device, in the order that the launcher knows.
	Device int
}

// Key names the stage.
func (a AssignedStage) Key() kevlard.StageKey {
	return kevlard.StageKey{Model: a.Model.ID, Layers: a.Layers}
}

// Deps is what a daemon gets handed in.
type Deps struct {
	// Launcher starts engines; required when there are assigned stages.
	Launcher Launcher
	// Key is the node key. Default: that in Config.DataDir, made if there is none.
	Key crypto.PrivKey
	// SecretFile reads [ring] secret_file again, which a change of the secret replaces
	// while the node runs. nil: Config.Secret is what it holds.
	SecretFile func() ([]byte, error)
	// Log gets the event log and the lines of the ring and the mesh. Default:
	// discarded.
	Log *slog.Logger
	// Mover makes what moves KV, and returns where it listens. Default: TCP at
	// Config.BulkListen, or none.
	Mover func(mover.Handler) (mover.Mover, string, error)
	// RDMA makes the transport that Config.BulkTransport asks for beside Mover. nil: none.
	RDMA func(RDMAUse) (RDMA, error)
	// Library is the weights on this node's disk. Default: what was fetched to
	// Config.DataDir in earlier lives.
	Library *weights.Library
	// Fetched describes a model at a path where weights were fetched to for a stage, so
	// that it can be loaded; it may have it offered. nil: stages are loaded only from
	// what this node has.
	Fetched func(ctx context.Context, path string) (LocalModel, error)
	// Devices watches this host's GPUs until ctx ends and tells of each reading. Default:
	// nothing is known of them.
	Devices func(ctx context.Context, tell func(DeviceNews)) error
	// Transport replaces the sockets of gossip in tests.
	Transport memberlist.NodeAwareTransport
}

func (c Config) withDefaults() Config {
	c.Role = cmp.Or(c.Role, membership.RoleHost)
	c.Ring = cmp.Or(c.Ring, "default")
	c.GossipBind = cmp.Or(c.GossipBind, "0.0.0.0:7946")
	c.MeshListen = cmp.Or(c.MeshListen, "0.0.0.0:7947")
	c.Profile = cmp.Or(c.Profile, "lan")
	c.BulkTransport = cmp.Or(c.BulkTransport, TransportAuto)
	c.Threads = cmp.Or(c.Threads, 1)
	c.Protocol = cmp.Or(c.Protocol, mesh.Versions{Min: protocol.MinVersion, Max: protocol.MaxVersion})
	c.KV.BlockTokens = cmp.Or(c.KV.BlockTokens, 32)
	c.KV.Bytes = cmp.Or(c.KV.Bytes, 256<<20)
	c.Labels = maps.Clone(c.Labels)
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	c.Assigned = slices.Clone(c.Assigned)
	for i := range c.Assigned {
		a := &c.Assigned[i]
		a.CellsWanted = cmp.Or(a.CellsWanted, 4*a.Model.Context)
	}
	return c
}

// Validate joins everything that is wrong with c. Names, secrets and addresses
// of the ring and the mesh are checked by their packages in New.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Name == "" {
		bad("node name: missing")
	}
	if c.Role != "" && c.Role != membership.RoleHost && c.Role != membership.RoleGateway {
		bad("node role %q: want host or gateway", c.Role)
	}
	if c.Role == membership.RoleGateway && c.Auto {
		bad("node role gateway: a gateway has no engine and can't take stages; make it a host")
	}
	if c.Auto && len(c.Assigned) > 0 {
		bad("stages are assigned, and are to be taken as planned: want one of both")
	}
	if c.Role == membership.RoleGateway && len(c.Assigned) > 0 {
		bad("node role gateway: a gateway has no engine, but %d stages are assigned to it; assign none or make it a host", len(c.Assigned))
	}
	if len(c.Assigned) > maxAssigned {
		bad("assigned stages: %d, want at most %d", len(c.Assigned), maxAssigned)
	}
	if c.Threads < 0 {
		bad("engine threads %d: want at least 1", c.Threads)
	}
	if _, _, err := net.SplitHostPort(c.APIAddr); c.APIAddr != "" && err != nil {
		bad("api address %q: want host:port: %w", c.APIAddr, err)
	}
	if c.Standbys < 0 || c.Standbys > 1 {
		bad("kv standbys %d: want 0 or 1", c.Standbys)
	}
	if c.KV.BlockTokens < 0 || c.KV.BlockTokens > maxBlockTokens {
		bad("kv block tokens %d: want 1 to %d", c.KV.BlockTokens, maxBlockTokens)
	}
	if c.WeightsBandwidth != 0 && c.WeightsBandwidth < weights.MinBandwidth {
		bad("weights bandwidth %d: want 0 (no cap) or at least %d", c.WeightsBandwidth, weights.MinBandwidth)
	}
	if !slices.Contains([]string{"", TransportAuto, TransportTCP, TransportRDMA}, c.BulkTransport) {
		bad("bulk transport %q: want %s, %s or %s", c.BulkTransport, TransportAuto, TransportTCP, TransportRDMA)
	}
	if c.KV.Bytes < 0 {
		bad("kv bytes %d: want 0 (the default) or more", c.KV.Bytes)
	}
	if _, err := pace.New(c.BulkBandwidth); err != nil {
		bad("bulk %v", err)
	}
	seen := map[kevlard.StageKey]bool{}
	for _, a := range c.Assigned {
		at := fmt.Sprintf("assigned stage %v of model %q", a.Layers, a.Model.Name)
		m := a.Model
		switch {
		case m.ID.IsZero() || m.Layers < 1 || m.Context < 1 || m.Vocab < 1:
			bad("%s: the model has digest %s, %d layers, context %d, vocabulary %d; want all of them", at, m.ID.Short(), m.Layers, m.Context, m.Vocab)
		case a.Layers.Lo < 0 || a.Layers.Hi <= a.Layers.Lo || a.Layers.Hi > m.Layers:
			bad("%s: want layers within [0,%d)", at, m.Layers)
		case a.Width < 1:
			bad("%s: a row of %d bytes, want at least 1", at, a.Width)
		case a.CellsWanted < 0:
			bad("%s: %d KV positions, want at least 1", at, a.CellsWanted)
		case seen[a.Key()]:
			bad("%s: assigned twice", at)
		}
		// Which stage a message is for is told by its first layer alone.
		for k := range seen {
			if k.Model == m.ID && k != a.Key() && k.Layers.Lo == a.Layers.Lo {
				bad("%s: two stages of one model that start at layer %d", at, a.Layers.Lo)
			}
		}
		seen[a.Key()] = true
	}
	return errors.Join(errs...)
}
