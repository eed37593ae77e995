package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"

	"github.com/hashicorp/memberlist"
	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/membership"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/topology"
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
	// BulkPort is the TCP port for bulk transfers, told to others with the mesh's
	// address. 0: none.
	BulkPort int
	// APIAddr is the host:port that the HTTP API listens on. Others are told it, with
	// the ring's address where it is unspecified, and nothing where it is a loopback
	// one that they can't reach. Empty: none.
	APIAddr string
	// APITLS says that the API speaks HTTPS.
	APITLS bool
	// Control is the path of the control socket, shown in member lists.
	Control string

	// Assigned lists the stages of a host.
	Assigned []AssignedStage
	// Threads is the number of compute threads of each engine. Default 1.
	Threads int

	// Zone and Labels are shown in member lists.
	Zone   string
	Labels map[string]string
	// Version is that of the build.
	Version string
	// Dev allows loopback addresses to be advertised.
	Dev bool

	// Timing and Limits are the decision code's own; see package node.
	Timing node.Timing
	Limits node.Limits
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
	// Log gets the event log and the lines of the ring and the mesh. Default:
	// discarded.
	Log *slog.Logger
	// Transport replaces the sockets of gossip in tests.
	Transport memberlist.NodeAwareTransport
}

func (c Config) withDefaults() Config {
	c.Role = cmp.Or(c.Role, membership.RoleHost)
	c.Ring = cmp.Or(c.Ring, "default")
	c.GossipBind = cmp.Or(c.GossipBind, "0.0.0.0:7946")
	c.MeshListen = cmp.Or(c.MeshListen, "0.0.0.0:7947")
	c.Profile = cmp.Or(c.Profile, "lan")
	c.Threads = cmp.Or(c.Threads, 1)
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
	if c.Role == membership.RoleGateway && len(c.Assigned) > 0 {
		bad("node role gateway: a gateway has no engine, but %d stages are assigned to it; assign none or make it a host", len(c.Assigned))
	}
	if len(c.Assigned) > maxAssigned {
		bad("assigned stages: %d, want at most %d", len(c.Assigned), maxAssigned)
	}
	if c.Threads < 0 {
		bad("engine threads %d: want at least 1", c.Threads)
	}
	if c.BulkPort < 0 || c.BulkPort > 65535 {
		bad("bulk port %d: want 0 to 65535", c.BulkPort)
	}
	if _, _, err := net.SplitHostPort(c.APIAddr); c.APIAddr != "" && err != nil {
		bad("api address %q: want host:port: %w", c.APIAddr, err)
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
