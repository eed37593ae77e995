package daemon

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"os"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/membership"
	"github.com/kevlard/kevlard/mesh"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/topology"
)

// outages remembers since when peers have been without connection. Entries go
// when the peer is back; those of nodes that never come back are dropped with the
// next read.
type outages struct {
	mu    sync.Mutex
	since map[kevlard.NodeID]time.Time
}

func (o *outages) down(n kevlard.NodeID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since == nil {
		o.since = map[kevlard.NodeID]time.Time{}
	}
	o.since[n] = time.Now()
}

func (o *outages) up(n kevlard.NodeID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.since, n)
}

// has reports whether a peer that had been connected is not.
func (o *outages) has(n kevlard.NodeID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, down := o.since[n]
	return down
}

// read copies the table and drops the nodes that known does not name.
func (o *outages) read(known map[kevlard.NodeID]bool) map[kevlard.NodeID]time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.since, func(n kevlard.NodeID, _ time.Time) bool { return !known[n] })
	return maps.Clone(o.since)
}

// Members returns the ring as this node sees it, by name.
func (d *Daemon) Members() report.Members {
	members := d.ring.Members()
	known := map[kevlard.NodeID]bool{}
	for _, m := range members {
		known[m.Name] = true
	}
	links := map[kevlard.NodeID]mesh.PeerStatus{}
	for _, p := range d.mesh.Peers() {
		links[p.Peer.Node] = p
	}
	peers := map[kevlard.NodeID]node.PeerInfo{}
	for _, p := range d.snapshot().node.Peers {
		peers[p.Node] = p
	}
	since := d.outages.read(known)
	out := report.Members{Ring: d.cfg.Ring, Self: string(d.cfg.Name), Nodes: make([]report.Member, 0, len(members))}
	for _, m := range members {
		var r report.Member
		if m.Name == d.cfg.Name {
			r = d.self(m)
		} else {
			r = d.member(m, links[m.Name], peers[m.Name], since[m.Name])
		}
		switch r.State {
		case "dead", "left":
		default:
			out.Size++
		}
		out.Nodes = append(out.Nodes, r)
	}
	addSlowness(&out, d.snapshot().view.Compare())
	if alone, of, _ := isolated(out); alone {
		out.Nodes[of].State = "isolated"
	}
	return out
}

// isolated reports whether all others of a ring of three or more are shown as dead:
// then it is rather this node that is cut off. self is its place in the list.
func isolated(m report.Members) (alone bool, self, dead int) {
	others := 0
	for i, n := range m.Nodes {
		switch {
		case n.Name == m.Self:
			self = i
		case n.State == "dead":
			dead++
			others++
		case n.State != "left":
			others++
		}
	}
	return dead >= 2 && dead == others, self, dead
}

// describeMember fills what is known of any member.
func (d *Daemon) describeMember(m membership.Member) report.Member {
	rec := d.records.of(m)
	r := report.Member{
		Name: string(m.Name), ID: m.Meta.Peer, Role: m.Meta.Role, Addr: m.Addr, MeshAddr: m.Meta.Mesh, BulkAddr: m.Meta.Bulk,
		State: string(state(m, rec)), Version: m.Meta.Version, Boot: string(m.Meta.Boot), Zone: rec.Zone, Labels: maps.Clone(rec.Labels),
		Engines: []report.Engine{}, Stages: describeStages(rec.Stages, rec.Draining),
	}
	if r.Labels == nil {
		r.Labels = map[string]string{}
	}
	r.API = apiURL(m.Meta.API, m.Meta.APITLS)
	return r
}

// apiURL is "" for a node whose API is only for its own host.
func apiURL(addr string, tls bool) string {
	switch {
	case addr == "":
		return ""
	case tls:
		return "https://" + addr
	}
	return "http://" + addr
}

func (d *Daemon) self(m membership.Member) report.Member {
	r := d.describeMember(m)
	r.PID, r.Control, r.Engines = os.Getpid(), d.cfg.Control, d.describeEngines()
	r.Ready, r.Reason = d.Ready()
	if s := d.snapshot().node; r.Ready && s.Avoided {
		r.Reason = because(avoided, s.Reason)
	}
	r.Fetches = d.Fetches()
	if r.API == "" { // others can't use it, but this host can
		r.API = apiURL(d.cfg.APIAddr, d.cfg.APITLS)
	}
	return r
}

// member adds what our links say: a node that gossip calls alive and the mesh can't
// reach is isolated from here.
func (d *Daemon) member(m membership.Member, link mesh.PeerStatus, peer node.PeerInfo, down time.Time) report.Member {
	r := d.describeMember(m)
	for _, rtt := range []time.Duration{m.RTT, link.RTT, peer.RTT} { // the best known last
		if rtt > 0 {
			r.RTTMS = millis(rtt)
		}
	}
	r.Transport = d.transportTo(m.Name)
	if down.IsZero() {
		down = m.Since
	}
	foreign := d.foreign(m)
	if r.State == "dead" {
		for i := range r.Stages { // what it held when it was last heard of; no weights are there now
			r.Stages[i] = report.Stage{Model: r.Stages[i].Model, Lo: r.Stages[i].Lo, Hi: r.Stages[i].Hi, State: string(topology.Cold)}
		}
	}
	switch {
	case r.State != "alive":
		r.Reason = because(r.State, d.records.of(m).Reason)
	case foreign != "":
		r.State, r.Reason = "isolated", foreign
	case !link.Connected && time.Since(down) > isolatedAfter:
		r.State, r.Reason = "isolated", "gossip reaches it, the mesh does not"
		if link.LastError != "" {
			r.Reason += ": " + link.LastError
		}
		if link.Inbound {
			r.Reason += "; the other direction works: it has connected to this node"
		}
	case !link.Connected:
		r.Reason = "the mesh is not connected to it"
	case !link.Inbound && time.Since(link.Since) > isolatedAfter && time.Since(down) > isolatedAfter:
		r.Reason = noWayBack
	case peer.Silent:
		r.Reason = "connected, but nothing is heard from it"
	default:
		rec := d.records.of(m)
		r.Reason = cmp.Or(unready(rec.Stages), rec.Missing)
		r.Ready = r.Reason == ""
		if r.Ready && rec.Avoid {
			r.Reason = because(avoided, rec.Reason)
		}
	}
	return r
}

// avoided is the reason of nodes that work, and that sessions do not go to while there are
// others.
const avoided = "sessions go elsewhere while they can"

// refuseEachOther ends the reason of nodes without a common version of the protocol.
const refuseEachOther = "they refuse each other"

// foreign says that a member and this node speak no common version of the protocol, ""
// if they do.
func (d *Daemon) foreign(m membership.Member) string {
	own, its := d.cfg.Protocol, mesh.Versions{Min: m.Meta.ProtoMin, Max: m.Meta.ProtoMax}
	if own.Meets(its) {
		return ""
	}
	return fmt.Sprintf("it speaks versions %s of the protocol (kevlard %s), this node %s (kevlard %s): "+refuseEachOther,
		its, cmp.Or(m.Meta.Version, "of unknown version"), own, cmp.Or(d.cfg.Version, "of unknown version"))
}

// noWayBack says which direction of a link fails: it can't be seen from here why.
const noWayBack = "this node reaches it, and it has not connected back: the way from it to this node is blocked"

// unready names the first stage that takes no work, "" if there is none.
func unready(stages []topology.Stage) string {
	for _, s := range stages {
		if s.State == topology.Ready || s.State == topology.Retiring {
			continue
		}
		why := fmt.Sprintf("stage %v is %s", s.Key.Layers, s.State)
		if s.State == topology.Loading && s.Progress > 0 {
			why += fmt.Sprintf(" (%d %%)", s.Progress/10)
		}
		if s.Reason != "" {
			why += ": " + s.Reason
		}
		return why
	}
	return ""
}

func describeStages(stages []topology.Stage, draining bool) []report.Stage {
	out := make([]report.Stage, 0, len(stages))
	for _, s := range stages {
		r := report.Stage{
			Model: s.Key.Model.String(), Lo: s.Key.Layers.Lo, Hi: s.Key.Layers.Hi, State: string(s.State),
			Progress: float64(s.Progress) / 1000, Reason: s.Reason, RowMS: float64(s.RowMicros) / 1000,
		}
		if draining && s.State == topology.Ready {
			r.State = "draining"
		}
		out = append(out, r)
	}
	return out
}

func (d *Daemon) describeEngines() []report.Engine {
	out := []report.Engine{}
	for _, e := range d.engines.loaded() {
		out = append(out, report.Engine{
			PID: e.info.PID, Device: e.info.Device, Lo: e.stage.Layers.Lo, Hi: e.stage.Layers.Hi, Class: e.info.Class, WeightBytes: e.info.WeightBytes,
		})
	}
	return out
}

// millis is d in milliseconds, to the microsecond.
func millis(d time.Duration) float64 { return math.Round(float64(d)/1e3) / 1e3 }
