// Package config is the configuration of a node: one documented struct, filled
// from the command line, the environment, a TOML file and defaults, in that order
// of precedence. A file with mistakes is answered with all of them at once, each
// with its key, its line and the nearest key that exists.
//
// The table of keys is a contract with operators. It holds keys of features that
// are still to come: they are accepted, and a warning says that they have no
// effect yet.
package config

import (
	"time"

	"github.com/kevlard/kevlard"
)

// The roles of a node.
const (
	RoleHost    = "host"    // holds stages
	RoleGateway = "gateway" // owns sessions, has no engine
)

// Config is the configuration of a node.
type Config struct {
	Node    Node
	Ring    Ring
	Mesh    Mesh
	API     API
	Models  Models
	KV      KV
	Engine  Engine
	Control Control
	Log     Log
}

// Node says who the node is.
type Node struct {
	Name    string // unique in the ring; default: the host's name
	Role    string // RoleHost or RoleGateway
	DataDir string // identity key, remembered peers, model manifests
	Zone    string // shown in member lists
	Labels  map[string]string
}

// Ring is the gossip group.
type Ring struct {
	Name       string   // rings of other names are not joined
	Bind       string   // host:port, UDP and TCP
	Advertise  string   // address, interface or CIDR that others reach this node at; empty: found out
	Join       []string // host:port of some members; three or more are wise
	SecretFile string   // from kevlard keygen
	Profile    string   // lan or wan: how fast death is declared
	Dev        bool     // a mesh on one machine: loopback addresses are allowed
}

// Mesh carries work between nodes.
type Mesh struct {
	Bind     string // host:port, TCP
	Fabric   string // address for activations, if not the advertised one
	BulkPort int    // TCP port for bulk transfers, at the address of Bind
	// Transport moves KV: TransportAuto, TransportTCP or TransportRDMA.
	Transport string
	Plain     bool // no encryption of KV on its way; the same on all nodes
}

// What moves KV.
const (
	TransportAuto = "auto" // the best that both ends have
	TransportTCP  = "tcp"
	TransportRDMA = "rdma"
)

// KV says which copies of sessions' KV are kept, and how they get there.
type KV struct {
	BlockTokens     int    // positions of one block
	RAMBytes        int    // memory for what is kept for others
	Standbys        int    // copies of the KV of sessions owned here
	Standby         string // StandbyRAM or StandbyHot: where this node keeps copies
	ReplicateTokens int    // so many finished positions are sent at once
	ReplicateMS     int    // a finished position waits no longer, in milliseconds
	Bandwidth       int    // bytes a second that are sent at most; 0: no cap
}

// Where copies are kept.
const (
	StandbyRAM = "ram"
	StandbyHot = "hot" // in the engine as well, where it has room
)

// API is the HTTP side that clients see.
type API struct {
	Listen   string // host:port; one that other hosts reach needs KeysFile
	KeysFile string // API keys, from kevlard keygen --api; empty: no key is needed
	// SharePrefixes lets the KV of one key's prompts serve another's.
	SharePrefixes bool
	TLSCert       string // PEM file; empty: plain HTTP
	TLSKey        string // PEM file of the certificate's key
	MaxQueue      int    // requests in flight; more are answered 429
	// ResumeWindow is how long a stream can be resumed after its client is gone, or after
	// its end; 0: not at all.
	ResumeWindow time.Duration
}

// Models says which weights there are and which layers this node holds.
type Models struct {
	Dirs   []string
	Assign []Assign // empty: those that the mesh gives it (auto), none for a gateway
	Serve  []Serve  // what it may be given by the mesh; empty: every model
	// FetchBandwidth is what is fetched from peers at most, and given to them, in bytes a
	// second; 0: no cap.
	FetchBandwidth int
}

// Assign gives this node one stage.
type Assign struct {
	Model  string // path of a GGUF file, or a name found in Models.Dirs
	Layers kevlard.Layers
}

// Engine says how stages are computed.
type Engine struct {
	// Devices are those that stages are planned for, or those of the stages of
	// Models.Assign, in their order and from the beginning again if there are fewer;
	// empty: the CPU. A stage whose device is not
	// there waits for it.
	Devices []string
	Threads int // compute threads of one engine; 0: half of the cores, shared
	Cells   int // KV positions of one stage, all sessions together; 0: what fits MemoryBytes
	// MemoryBytes is the memory of one device for weights and KV where stages are
	// planned, 0: half of what there is; else the KV memory of one stage, 0: 256 MiB.
	MemoryBytes int
	// BackendDir has the backend libraries of the GPUs.
	BackendDir string
}

// Control is the socket for this machine's administrators.
type Control struct {
	Socket string
	Group  string // name or number; its members may look at the socket; empty: nobody else
}

// Log says what is logged, and how.
type Log struct{ Level, Format string }

// Defaults returns the configuration of an empty file. The name is left empty:
// the caller knows the host's.
func Defaults() Config {
	return Config{
		Node:   Node{Role: RoleHost, DataDir: "/var/lib/kevlard"},
		Ring:   Ring{Name: "default", Bind: "0.0.0.0:7946", Profile: "lan"},
		Mesh:   Mesh{Bind: "0.0.0.0:7947", BulkPort: 7948, Transport: TransportAuto},
		API:    API{Listen: "127.0.0.1:8080", MaxQueue: 256, ResumeWindow: time.Minute},
		Models: Models{Dirs: []string{"/var/lib/kevlard/models"}, FetchBandwidth: 64 << 20},
		KV:     KV{BlockTokens: 32, RAMBytes: 256 << 20, Standbys: 1, Standby: StandbyRAM, ReplicateTokens: 16, ReplicateMS: 250},
		Log:    Log{Level: "info", Format: "text"},
	}
}
