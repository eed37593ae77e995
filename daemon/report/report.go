// Package report holds what a daemon says about itself and its ring, in the
// JSON shapes that cli.md fixes. The daemon fills them, the API and the control
// socket send them, the command line prints them. Fields may be added, none is
// renamed. It imports only the standard library.
//
// Times are RFC 3339 in UTC or milliseconds (..._ms), sizes are bytes. Lists are
// never null.
package report

import "time"

// Members is the ring as one node sees it (`members -o json`, cluster.json).
type Members struct {
	Ring  string   `json:"ring"`
	Self  string   `json:"self"`
	Size  int      `json:"size"` // nodes that are alive, suspect or draining
	Nodes []Member `json:"nodes"`
}

// Member is one node of the ring.
type Member struct {
	Name     string            `json:"name"`
	ID       string            `json:"id"`   // libp2p peer ID
	Role     string            `json:"role"` // host or gateway
	Addr     string            `json:"addr"` // gossip, host:port
	MeshAddr string            `json:"mesh_addr"`
	BulkAddr string            `json:"bulk_addr"`
	API      string            `json:"api"`               // URL
	Control  string            `json:"control,omitempty"` // local daemons only
	PID      int               `json:"pid,omitempty"`     // local daemons only
	Engines  []Engine          `json:"engines"`           // local daemons only
	State    string            `json:"state"`             // alive, suspect, dead, left, draining or isolated
	Ready    bool              `json:"ready"`
	Reason   string            `json:"reason"` // why it is not ready
	Version  string            `json:"version"`
	Boot     string            `json:"boot"`
	Zone     string            `json:"zone"`
	Labels   map[string]string `json:"labels"`
	RTTMS    float64           `json:"rtt_ms"`
	Stages   []Stage           `json:"stages"`
	Fetches  []Fetch           `json:"fetches,omitempty"` // that run now; local daemons only

	// Transport moves KV there from the node that was asked: rdma, tcp-tls or tcp-plain; ""
	// while nothing was sent there.
	Transport string `json:"transport,omitempty"`
}

// Engine is one engine process of a local daemon.
type Engine struct {
	PID         int    `json:"pid"`
	Device      string `json:"device"`
	Lo          int    `json:"lo"`
	Hi          int    `json:"hi"`
	Class       string `json:"class,omitempty"`
	WeightBytes int64  `json:"weight_bytes,omitempty"`
}

// Stage is a stage that a node says it has.
type Stage struct {
	Model    string  `json:"model"` // sha256:...
	Lo       int     `json:"lo"`
	Hi       int     `json:"hi"`
	State    string  `json:"state"`    // cold, loading, ready, stalled or draining
	Progress float64 `json:"progress"` // of loading, 0 to 1
	Reason   string  `json:"reason,omitempty"`
	// RowMS is how long the engine takes for one row, and Slowness that beside other stages
	// of the model: 2 is twice as long. 0: not known.
	RowMS    float64 `json:"row_ms,omitempty"`
	Slowness float64 `json:"slowness,omitempty"`
}

// Topology is the models and their pipelines (`topology -o json`).
type Topology struct {
	Models []Model `json:"models"`
}

// Model is one model that some node of the ring holds stages of.
type Model struct {
	ID              string            `json:"id"`
	Name            string            `json:"name"`
	Layers          int               `json:"layers"`
	Context         int               `json:"context,omitempty"`
	Degraded        bool              `json:"degraded"` // some layers have fewer ready holders than wanted
	Pipelines       []Pipeline        `json:"pipelines"`
	UnderReplicated []UnderReplicated `json:"under_replicated"`
}

// Pipeline is one chain of stages that covers all layers of its model, ready or
// not.
type Pipeline struct {
	ID     string          `json:"id"` // p0, p1, ...
	Stages []PipelineStage `json:"stages"`
}

// PipelineStage is one stage of a pipeline.
type PipelineStage struct {
	Lo     int    `json:"lo"`
	Hi     int    `json:"hi"`
	Node   string `json:"node"`
	State  string `json:"state"`
	Shared bool   `json:"shared"` // also part of an earlier pipeline
}

// UnderReplicated is a range of layers with fewer ready holders than wanted.
type UnderReplicated struct {
	Lo    int `json:"lo"`
	Hi    int `json:"hi"`
	Ready int `json:"ready"`
	Want  int `json:"want"`
}

// Sessions is the live sessions (`sessions -o json`).
type Sessions struct {
	Sessions []Session `json:"sessions"`
	// Unreachable names the nodes that did not answer when all were asked.
	Unreachable []string `json:"unreachable,omitempty"`
}

// Session is one live session, as its owner sees it.
type Session struct {
	ID                string     `json:"id"`
	Model             string     `json:"model"`
	Owner             string     `json:"owner"`
	Epoch             uint64     `json:"epoch"`
	Term              uint64     `json:"term"`
	Tokens            int        `json:"tokens"`             // known so far, prompt included
	State             string     `json:"state"`              // queued, prefill, decode, recovering, paused or idle
	Route             []string   `json:"route"`              // one node for each stage
	Standbys          [][]string `json:"standbys"`           // nodes for each stage
	ReplicatedThrough []int      `json:"replicated_through"` // positions for each stage
	Failovers         int        `json:"failovers"`
	LastGapMS         float64    `json:"last_gap_ms"`
	// Witnesses are the nodes that vote when another wants to take the session over.
	// Empty: it cannot be taken over.
	Witnesses []string `json:"witnesses,omitempty"`
}

// Event is one entry of the event log (`events -o json`, one object a line).
type Event struct {
	At      time.Time `json:"at"`
	Node    string    `json:"node"` // the node that reports it
	Type    string    `json:"type"`
	Session string    `json:"session,omitempty"`
	Peer    string    `json:"peer,omitempty"` // the other node concerned
	Stage   string    `json:"stage,omitempty"`
	Term    uint64    `json:"term,omitempty"`
	Cause   string    `json:"cause,omitempty"`
	Detail  string    `json:"detail,omitempty"`
	TookMS  float64   `json:"took_ms,omitempty"`
	// Failover splits took_ms of a "recovered" event.
	Failover *Failover `json:"failover,omitempty"`
	// Seq grows by one for each event of one daemon's life; a gap shows that the
	// reader was too slow or came too late.
	Seq uint64 `json:"seq"`
}

// Clocks compares the clocks of the members that answered with that of the node asked.
type Clocks struct {
	Clocks      []Clock  `json:"clocks"`
	Unreachable []string `json:"unreachable,omitempty"`
}

// Clock is one member's.
type Clock struct {
	Node     string  `json:"node"`
	OffsetMS float64 `json:"offset_ms"` // how far it is ahead; below 0 behind
	WithinMS float64 `json:"within_ms"` // what the offset may be wrong by
}

// Failover is one failover of a session as its client saw it: a pause of
// detect_ms + reroute_ms + restore_ms.
type Failover struct {
	AtToken   int     `json:"at_token"`   // generated tokens before the pause
	DetectMS  float64 `json:"detect_ms"`  // last token to evidence
	RerouteMS float64 `json:"reroute_ms"` // to the last prepare answered
	RestoreMS float64 `json:"restore_ms"` // to the first token after that
	Known     int     `json:"known"`      // tokens known when the new route began, prompt included
	From      int     `json:"from"`       // the position it began at
}

// Status is one node's health in one screen (`status -o json`).
type Status struct {
	Node     string        `json:"node"`
	Ring     string        `json:"ring"`
	Role     string        `json:"role"`
	Version  string        `json:"version"`
	Boot     string        `json:"boot"`
	PID      int           `json:"pid"`
	UptimeMS int64         `json:"uptime_ms"`
	Ready    bool          `json:"ready"`
	Reason   string        `json:"reason"` // why it is not ready
	Draining bool          `json:"draining"`
	Stopping bool          `json:"stopping"` // it leaves the ring when its sessions have ended
	Members  MemberCounts  `json:"members"`
	Sessions SessionCounts `json:"sessions"`
	Stages   []Stage       `json:"stages"`
	Engines  []Engine      `json:"engines"`
	Links    []Link        `json:"links"`
	Fetches  []Fetch       `json:"fetches"` // that run now
	GPUs     []GPU         `json:"gpus"`    // of this host
	// NotRun lists what of this node's configuration nobody has ever run before a release.
	NotRun []string `json:"not_run"`
	// Problems says what is wrong and what to do, the worst first; empty when all
	// is well.
	Problems []Problem `json:"problems"`
}

// GPU is one GPU of the host.
type GPU struct {
	Index       int    `json:"index"`
	ID          string `json:"id"` // UUID, or PCI address where it has none
	Name        string `json:"name"`
	PCI         string `json:"pci"`
	Used        bool   `json:"used"`  // stages of this node are on it
	State       string `json:"state"` // ok, avoid or drain
	Cause       string `json:"cause,omitempty"`
	Reason      string `json:"reason,omitempty"`
	MIG         bool   `json:"mig,omitempty"` // it is cut, and takes no stages itself
	MemoryUsed  int64  `json:"memory_used"`
	MemoryTotal int64  `json:"memory_total"`
	Temperature int    `json:"temperature"` // in degrees Celsius; 0: not known
}

// Fetch is one fetch of weights from peers (`model fetch -o json`).
type Fetch struct {
	Model   string        `json:"model"`
	Name    string        `json:"name"` // empty until a holder was found
	Lo      int           `json:"lo"`
	Hi      int           `json:"hi"`
	Bytes   int64         `json:"bytes"`   // of Units that are here
	Total   int64         `json:"total"`   // of Units
	Fetched int64         `json:"fetched"` // that came from peers in this fetch
	Units   []FetchUnit   `json:"units"`
	Holders []FetchHolder `json:"holders"`
	Waits   string        `json:"waits,omitempty"` // what it waits for, while nothing can come
	Path    string        `json:"path,omitempty"`  // in the end: where it is
}

// FetchUnit is how far one unit is.
type FetchUnit struct {
	Name     string `json:"name"`
	Bytes    int64  `json:"bytes"` // that are here
	Total    int64  `json:"total"`
	Verified bool   `json:"verified"`
}

// FetchHolder is what came from one node.
type FetchHolder struct {
	Node    string `json:"node"`
	Bytes   int64  `json:"bytes"`
	Wrong   int    `json:"wrong"`             // chunks that were not what they should be
	Dropped string `json:"dropped,omitempty"` // why it is not asked any more
}

// MemberCounts counts the members by state.
type MemberCounts struct {
	Alive    int `json:"alive"`
	Suspect  int `json:"suspect"`
	Dead     int `json:"dead"`
	Left     int `json:"left"`
	Draining int `json:"draining"`
	Isolated int `json:"isolated"`
}

// SessionCounts counts the sessions of this node.
type SessionCounts struct {
	Owned       int    `json:"owned"`        // owned here, running or queued
	Hosted      int    `json:"hosted"`       // held by the stages here
	FencedItems uint64 `json:"fenced_items"` // late items dropped since the start
}

// Link is the mesh connection to one peer.
type Link struct {
	Peer   string  `json:"peer"`
	Up     bool    `json:"up"`
	Silent bool    `json:"silent"` // connected, but nothing is heard
	RTTMS  float64 `json:"rtt_ms"`
	Error  string  `json:"error,omitempty"` // of the last attempt, while down
	// Transport moves KV there: rdma, tcp-tls or tcp-plain; "" while nothing was sent.
	Transport string `json:"transport,omitempty"`
}

// Problem is something wrong and what to do about it.
type Problem struct {
	What string `json:"what"`
	Fix  string `json:"fix"`
}

// Keys is the cluster secrets of the members (`keys -o json`), by their IDs: the
// secrets themselves never leave a node this way.
type Keys struct {
	Nodes []NodeKeys `json:"nodes"` // those that have not left, by name
}

// NodeKeys is the cluster secrets of one member.
type NodeKeys struct {
	Node       string   `json:"node"`
	State      string   `json:"state"`      // alive or dead
	Secrets    []string `json:"secrets"`    // IDs, the one in use first
	Configured string   `json:"configured"` // ID of the one in its secret_file
	Error      string   `json:"error,omitempty"`
}

// Join is the result of `join`.
type Join struct {
	Asked    int               `json:"asked"`
	Answered int               `json:"answered"`
	Errors   map[string]string `json:"errors"` // by address
	Seen     []string          `json:"seen"`   // members that the ring shows now
}

// Leave is the result of `leave`.
type Leave struct {
	Lost bool `json:"lost"` // a session of this node was cut off
	Cut  int  `json:"cut"`  // how many
}
