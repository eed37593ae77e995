package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/semaphore"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/internal/lifecycle"
	"github.com/kevlard/kevlard/membership"
	"github.com/kevlard/kevlard/mesh"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// maxTemperature is the hottest sampling that the protocol carries.
const maxTemperature = 100

// Daemon is one node. Its methods may be called by any goroutine while Run runs;
// before and after, reads show an empty ring and operations fail.
type Daemon struct {
	cfg   Config
	boot  kevlard.BootID
	start time.Time
	log   *slog.Logger
	codec *protocol.Codec

	bulkRoot [32]byte // keys of plain bulk connections are derived from it

	mesh       *mesh.Mesh
	ring       *membership.Ring
	records    *records
	engines    *engines
	events     *eventLog
	streams    streams
	finds      questions[node.Found]
	takeovers  questions[node.TakenOver]
	clients    atomic.Uint64 // the last one's number
	board      *board
	metrics    *metrics
	copies     copies
	weights    carrier
	bulk       string // where the mover listens, "" if nowhere
	transports transports
	seldom     seldom
	outages    outages
	secrets    *secrets
	devices    devices

	suspects chan mesh.Peer // bounded: peers whose connections broke

	inbox  chan node.Event     // bounded: see limits.go
	frames *semaphore.Weighted // bytes of the frames in the inbox
	ended  chan struct{}       // closed when the loop has ended
	left   chan struct{}       // capacity 1: Leave is done

	leaving atomic.Int32 // calls of Leave under way

	// The loop's own.
	machine    *node.Machine
	own        queue
	unsendable map[kevlard.NodeID]bool // at most one entry for each node of the view
}

// New checks cfg and binds the ports of gossip and mesh, so that errors show
// early. It contacts nobody. Run must follow, if only with an ended context, to
// release what New bound.
func New(cfg Config, deps Deps) (*Daemon, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if (cfg.Auto || len(cfg.Assigned) > 0) && deps.Launcher == nil {
		return nil, errors.New("stages are assigned to this node, but this build has no engine: build with cgo, or use role gateway")
	}
	log := deps.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	key := deps.Key
	if key == nil {
		if cfg.DataDir == "" {
			return nil, errors.New("data directory: missing; it keeps the node key, by which peers know this node")
		}
		var err error
		if key, err = mesh.LoadOrCreateKey(cfg.DataDir); err != nil {
			return nil, err
		}
	}
	d := &Daemon{
		cfg: cfg, boot: kevlard.BootID(ulid.Make().String()), start: time.Now(), log: log, codec: protocol.NewCodec(),
		events: newEventLog(), board: newBoard(), streams: newStreams(), frames: semaphore.NewWeighted(maxFrameBytes),
		suspects: make(chan mesh.Peer, maxSuspects), inbox: make(chan node.Event, inboxSize), ended: make(chan struct{}), left: make(chan struct{}, 1),
		unsendable: map[kevlard.NodeID]bool{}, bulkRoot: newRoot(),
	}
	d.devices.watch = deps.Devices
	d.metrics = newMetrics(d)
	d.engines = newEngines(cfg, deps.Launcher, d.post, d.metrics.observeStep, log)
	own, assigned := d.describe()
	d.machine = node.New(node.Config{Self: cfg.Name, Boot: d.boot, Stages: assigned, Timing: cfg.Timing, Limits: cfg.Limits, KV: cfg.KV, Standbys: cfg.Standbys, Auto: cfg.Auto, Goal: cfg.Goal, Settle: cfg.Settle, AuditSeed: newRoot()})
	var err error
	pull := func(ctx context.Context, from kevlard.NodeID) ([]byte, error) {
		return d.mesh.Call(ctx, from, methodRecord, nil)
	}
	report := func(typ string, peer kevlard.NodeID, cause, detail string) {
		d.report(node.Report{Type: typ, Node: peer, Cause: cause, Detail: detail})
	}
	if d.records, err = newRecords(own, key, pull, report, log); err != nil {
		return nil, err
	}
	d.secrets = &secrets{dir: cfg.DataDir, configured: cfg.Secret, file: deps.SecretFile}
	if d.secrets.keys, err = Secrets(cfg.DataDir, cfg.Secret); err != nil {
		return nil, err
	}
	if d.mesh, err = mesh.New(mesh.Config{
		Key: key, Self: cfg.Name, Boot: d.boot, Ring: cfg.Ring, Secret: d.secrets.keys[0], OldSecrets: d.secrets.keys[1:], Versions: cfg.Protocol, Listen: cfg.MeshListen, Handler: d.handler(), Log: log,
	}); err != nil {
		return nil, err
	}
	if deps.Mover == nil && cfg.BulkListen != "" {
		deps.Mover = d.newTCP(key)
	}
	if deps.Library == nil {
		deps.Library = newLibrary(cfg, deps)
	}
	if err = d.bindCopies(deps); err == nil {
		err = d.bindRing(deps)
	}
	if err != nil {
		return nil, errors.Join(err, d.unbind())
	}
	return d, nil
}

// describe turns the assigned stages into the first record and the machine's
// configuration.
func (d *Daemon) describe() (record, []node.Assigned) {
	own := record{Node: d.cfg.Name, Boot: d.boot, Version: 1, Zone: d.cfg.Zone, Labels: d.cfg.Labels}
	if d.cfg.Auto {
		own.Capacity = d.cfg.Capacity
		own.Capacity.Auto = true
	}
	seen := map[kevlard.Digest]bool{}
	var assigned []node.Assigned
	for _, a := range d.cfg.Assigned {
		if !seen[a.Model.ID] {
			m := a.Model
			m.Width = a.Width
			own.Models = append(own.Models, m)
			seen[a.Model.ID] = true
		}
		own.Stages = append(own.Stages, topology.Stage{Key: a.Key(), State: topology.Cold, Device: a.Device})
		assigned = append(assigned, node.Assigned{Model: a.Model, Layers: a.Layers, Width: a.Width, Device: a.Device})
	}
	return own, assigned
}

// bindRing binds gossip; the mesh and bulk transport are bound, so their ports are
// known.
func (d *Daemon) bindRing(deps Deps) error {
	at, err := d.cfg.endpoints(d.mesh.Addr(), d.bulk, membership.SystemInterfaces)
	if err != nil {
		return err
	}
	d.ring, err = membership.New(membership.Config{
		Name: d.cfg.Name, Ring: d.cfg.Ring, Bind: d.cfg.GossipBind, Advertise: at.gossip, Join: d.cfg.Join,
		Secret: d.secrets.keys[0], OldSecrets: d.secrets.keys[1:],
		Profile: d.cfg.Profile, DataDir: d.cfg.DataDir, Log: d.log, Transport: deps.Transport,
		Refused: func(addr, reason string) { d.refused("", addr, reason) },
		Meta: membership.Meta{
			Peer: d.mesh.PeerID(), Boot: d.boot, Role: d.cfg.Role, ProtoMin: d.cfg.Protocol.Min, ProtoMax: d.cfg.Protocol.Max, Mesh: at.mesh, Bulk: at.bulk,
			API: at.api, APITLS: d.cfg.APITLS, Record: 1, Version: d.cfg.Version,
		},
	})
	if err == nil {
		d.secrets.apply = []func([][]byte) error{d.ring.SetSecrets, d.mesh.SetSecrets}
	}
	return err
}

// unbind releases the ports of mesh and bulk transport after a failed New.
func (d *Daemon) unbind() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return errors.Join(d.copies.run(ctx), d.mesh.Run(ctx))
}

// Run runs the node until ctx ends, Leave has left the ring, or a part fails. It
// returns after everything it started has ended; nil unless something went wrong.
// Sessions still owned here are failed with "draining": call Leave before to let
// them end. It can run only once.
func (d *Daemon) Run(ctx context.Context) error {
	if ctx.Err() == nil { // else it runs only to release what New bound, and never was ready
		if err := notify(systemd.SdNotifyReady); err != nil {
			return err
		}
		d.report(node.Report{Type: "start", Detail: d.beginning()})
	}
	err := lifecycle.Run(ctx,
		lifecycle.Part{Name: "mesh", Run: d.mesh.Run, Grace: meshGrace},
		lifecycle.Part{Name: "ring", Run: d.ring.Run, Grace: ringGrace},
		lifecycle.Part{Name: "inquests", Run: d.inquire, Grace: inquestsGrace},
		lifecycle.Part{Name: "log", Run: d.logEvents, Grace: logGrace},
		lifecycle.Part{Name: "copies", Run: d.copies.run, Grace: copiesGrace},
		lifecycle.Part{Name: "engines", Run: d.engines.run, Grace: enginesGrace},
		lifecycle.Part{Name: "records", Run: d.follow, Grace: recordsGrace},
		lifecycle.Part{Name: "loop", Run: d.loop, Grace: loopGrace},
		lifecycle.Part{Name: "devices", Run: d.watchDevices, Grace: devicesGrace},
		lifecycle.Part{Name: "leave", Run: d.awaitLeave, Grace: leaveGrace},
	)
	d.weights.library.Close()
	return err
}

// beginning describes this life: what runs, and where it can be reached.
func (d *Daemon) beginning() string {
	text := fmt.Sprintf("boot %s, peer %s, gossip %s, mesh %s", d.boot, d.mesh.PeerID(), d.ring.Addr(), d.mesh.Addr())
	if d.cfg.APIAddr != "" {
		text += ", API " + apiURL(d.cfg.APIAddr, d.cfg.APITLS)
	}
	if d.cfg.Version != "" {
		text += ", kevlard " + d.cfg.Version
	}
	return text
}

// follow runs the records and tells the event log what the ring says.
func (d *Daemon) follow(ctx context.Context) error {
	var last topology.View
	return d.records.run(ctx, d.ring, d.mesh.SetPeers, func(v topology.View) {
		for _, e := range changes(last, v, d.cfg.Name) {
			if e.Type == "node-forgotten" {
				d.forgetPeer(e.Node)
			}
			d.report(e)
		}
		last = v
		d.post(node.ViewChanged{View: v})
	})
}

// changes names what became of the members between two views.
func changes(before, after topology.View, self kevlard.NodeID) []node.Report {
	var out []node.Report
	for _, n := range after.Nodes {
		old, known := before.Node(n.ID)
		switch {
		case n.ID == self:
		case known && old.Boot != n.Boot && n.State != topology.Left:
			out = append(out, node.Report{Type: "node-restart", Node: n.ID, Detail: fmt.Sprintf("boot %s", n.Boot)})
		case known && old.State == n.State:
		case known && old.State == topology.Draining && n.State == topology.Alive: // it never was away
			out = append(out, node.Report{Type: "node-undrained", Node: n.ID})
		case n.State == topology.Alive && (!known || old.State != topology.Suspect):
			out = append(out, node.Report{Type: "node-join", Node: n.ID, Detail: fmt.Sprintf("role %s, boot %s", n.Role, n.Boot)})
		case !known && (n.State == topology.Dead || n.State == topology.Left): // old news of a ring just joined
		default:
			out = append(out, node.Report{Type: "node-" + string(n.State), Node: n.ID})
		}
	}
	for _, n := range before.Nodes {
		if _, ok := after.Node(n.ID); !ok {
			out = append(out, node.Report{Type: "node-forgotten", Node: n.ID})
		}
	}
	return out
}

// awaitLeave ends the run once Leave is done.
func (d *Daemon) awaitLeave(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-d.left:
	}
	return notify(systemd.SdNotifyStopping)
}

// Name returns the node's name.
func (d *Daemon) Name() kevlard.NodeID { return d.cfg.Name }

// Boot returns the ID of this life.
func (d *Daemon) Boot() kevlard.BootID { return d.boot }

// GossipAddr returns the host:port that others use for gossip.
func (d *Daemon) GossipAddr() string { return d.ring.Addr() }

// MeshAddr returns the host:port that the mesh listens on.
func (d *Daemon) MeshAddr() string { return d.mesh.Addr() }

// BulkAddr returns the host:port that KV from peers is taken at, "" if none is.
func (d *Daemon) BulkAddr() string { return d.bulk }
