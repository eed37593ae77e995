package daemon

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/topology"
)

// Ready reports whether this node can take a session now, and if not, why: some
// model must have a complete route over nodes that are up and heard, no engine here may
// be stalled or broken, and no configured device may be missing.
func (d *Daemon) Ready() (ok bool, reason string) {
	s := d.snapshot()
	select {
	case <-d.ended:
		return false, "stopping"
	default:
	}
	switch {
	case s.at == 0:
		return false, "starting"
	case s.node.Draining:
		return false, because("draining: no new sessions are taken", s.node.Reason)
	}
	if reason := d.unfit(); reason != "" {
		return false, reason
	}
	for _, st := range s.node.Stages {
		if st.State == topology.Stalled || st.State != topology.Ready && st.Reason != "" {
			return false, unready([]topology.Stage{st.Stage})
		}
	}
	if why := d.devices.lacks(); why != "" {
		return false, why
	}
	missing := ""
	for _, m := range s.serving {
		if m.ok {
			return true, ""
		}
		if missing == "" {
			missing = fmt.Sprintf("model %q has no complete route now: nobody serves layers %s", m.model.Name, joined(m.missing))
		}
	}
	if missing != "" {
		return false, missing
	}
	return false, "no node of the ring holds a model"
}

// because adds why to what, if there is a why.
func because(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}

// disagreements names the nodes whose weights are not those that others have under
// the same name.
func disagreements(s *snapshot) []report.Problem {
	var out []report.Problem
	nodes := func(m topology.Model) string {
		return names(s.view.Holders(m.ID))
	}
	for i, m := range s.serving {
		for _, stray := range s.strays {
			if stray.Name == m.model.Name {
				out = append(out, report.Problem{
					What: fmt.Sprintf("node %s: its weights are not those of model %s: it has %s, the ring serves %s: no session is routed to them", nodes(stray), m.model.Name, stray.ID, m.model.ID),
					Fix:  fmt.Sprintf("copy the file from %s, or take the stage out of [models] assign; `kevlard model inspect FILE` shows a file's digests", nodes(m.model)),
				})
			}
		}
		if i > 0 && s.serving[i-1].model.Name == m.model.Name {
			first := s.serving[i-1].model
			out = append(out, report.Problem{
				What: fmt.Sprintf("two models are called %s: %s on %s, and %s on %s: requests must name one by its id", m.model.Name, first.ID, nodes(first), m.model.ID, nodes(m.model)),
				Fix:  "if they should be one, give all nodes the same file; `kevlard model inspect FILE` shows a file's digests",
			})
		}
	}
	return out
}

// distrusted names the nodes that others dispute; no route uses them.
func distrusted(s *snapshot) (out []report.Problem) {
	for _, t := range s.node.Distrusted {
		out = append(out, report.Problem{
			What: fmt.Sprintf("node %s computes layers %v of model %s (%s) otherwise than %s, which say they hold the same weights: nothing is routed to it", t.Node, t.Key.Layers, modelName(s.view, t.Key.Model), t.Key.Model, names(t.Against)),
			Fix:  fmt.Sprintf("check the weights there (`kevlard model verify FILE`), its memory and devices, and who runs it, and restart it: it is used again when another holder of its layers agrees with it; or stop it, and `kevlard force-leave %s` forgets what was found", t.Node),
		})
	}
	return out
}

func names(nodes []kevlard.NodeID) string {
	s := make([]string, len(nodes))
	for i, n := range nodes {
		s[i] = string(n)
	}
	return strings.Join(s, ", ")
}

func has(models []topology.Model, m topology.Model) bool {
	return slices.ContainsFunc(models, func(o topology.Model) bool { return o.ID == m.ID })
}

func modelName(v topology.View, id kevlard.Digest) string {
	if m, ok := v.Model(id); ok {
		return m.Name
	}
	return id.Short()
}

func mib(bytes int64) int64 { return bytes >> 20 }

func joined(ranges []kevlard.Layers) string {
	s := make([]string, len(ranges))
	for i, l := range ranges {
		s[i] = l.String()
	}
	return strings.Join(s, ", ")
}

// Models lists the models that some live node holds stages of, by name and ID,
// whether or not they can be served now. Strays are not among them: one node with a
// wrong file must not make a name ambiguous for the whole ring.
func (d *Daemon) Models() []topology.Model {
	s := d.snapshot()
	live := topology.View{}
	for _, n := range s.view.Nodes {
		if n.State != topology.Dead && n.State != topology.Left {
			live.Nodes = append(live.Nodes, n)
		}
	}
	return slices.DeleteFunc(live.Models(), func(m topology.Model) bool { return has(s.strays, m) })
}

// Topology returns the models of the ring and their pipelines.
func (d *Daemon) Topology() report.Topology {
	view := d.snapshot().view
	out := report.Topology{Models: []report.Model{}}
	for _, m := range view.Models() {
		l := view.Layout(m)
		r := report.Model{
			ID: m.ID.String(), Name: m.Name, Layers: m.Layers, Context: m.Context, Degraded: len(l.Shortages)+len(l.Missing) > 0,
			Pipelines: []report.Pipeline{}, UnderReplicated: []report.UnderReplicated{},
		}
		for _, p := range l.Pipelines {
			stages := []report.PipelineStage{}
			for _, s := range p.Stages {
				stages = append(stages, report.PipelineStage{Lo: s.Layers.Lo, Hi: s.Layers.Hi, Node: string(s.Node), State: string(s.State), Shared: s.Shared})
			}
			r.Pipelines = append(r.Pipelines, report.Pipeline{ID: p.ID, Stages: stages})
		}
		for _, s := range l.Shortages {
			r.UnderReplicated = append(r.UnderReplicated, report.UnderReplicated{Lo: s.Layers.Lo, Hi: s.Layers.Hi, Ready: s.Ready, Want: s.Want})
		}
		out.Models = append(out.Models, r)
	}
	return out
}

// Sessions returns the live sessions owned here, or with all those of every
// member, by owner and id. Members that do not answer within askTimeout are named
// as unreachable.
func (d *Daemon) Sessions(ctx context.Context, all bool) report.Sessions {
	out := d.ownSessions()
	if !all {
		return out
	}
	out.Unreachable = askMembers(ctx, d, "sessions", d.askSessions, func(theirs report.Sessions) { out.Sessions = append(out.Sessions, theirs.Sessions...) })
	slices.SortFunc(out.Sessions, func(a, b report.Session) int {
		if c := strings.Compare(a.Owner, b.Owner); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return out
}

func (d *Daemon) askSessions(ctx context.Context, n kevlard.NodeID) (report.Sessions, error) {
	theirs := sessionsAnswer{of: n}
	b, err := d.mesh.Call(ctx, n, methodSessions, nil)
	if err == nil {
		err = readCall(fmt.Sprintf("the sessions of node %s", n), b, &theirs)
	}
	return theirs.Sessions, err
}

func (d *Daemon) ownSessions() report.Sessions {
	out := report.Sessions{Sessions: []report.Session{}}
	known := d.snapshot().node
	for _, s := range slices.Concat(known.Sessions, known.Paused) {
		r := report.Session{
			ID: string(s.ID), Model: s.Model.String(), Owner: string(d.cfg.Name), Epoch: s.Fence.Epoch, Term: s.Fence.Term, Tokens: s.Tokens,
			State: s.State, Route: []string{}, Standbys: [][]string{}, ReplicatedThrough: []int{}, Witnesses: []string{}, Failovers: s.Failovers, LastGapMS: millis(s.LastGap),
		}
		for i, h := range s.Route {
			r.Route = append(r.Route, string(h.Node))
			standbys, through := []string{}, 0
			if i < len(s.Standbys) && i < len(s.Replicated) && s.Standbys[i] != "" {
				standbys, through = append(standbys, string(s.Standbys[i])), s.Replicated[i]
			}
			r.Standbys = append(r.Standbys, standbys)
			r.ReplicatedThrough = append(r.ReplicatedThrough, through)
		}
		for _, n := range s.Witnesses {
			r.Witnesses = append(r.Witnesses, string(n))
		}
		out.Sessions = append(out.Sessions, r)
	}
	return out
}

// Status returns this node's health, what is wrong and what to do.
func (d *Daemon) Status() report.Status {
	s := d.snapshot()
	members := d.Members()
	out := report.Status{
		Node: string(d.cfg.Name), Ring: d.cfg.Ring, Role: d.cfg.Role, Version: d.cfg.Version, Boot: string(d.boot), PID: os.Getpid(),
		UptimeMS: time.Since(d.start).Milliseconds(), Draining: s.node.Draining, Stopping: d.leaving.Load() > 0, Engines: d.describeEngines(), Links: []report.Link{}, Fetches: d.Fetches(), GPUs: d.describeDevices(), NotRun: append([]string{}, d.cfg.NotRun...),
		Sessions: report.SessionCounts{Owned: len(s.node.Sessions), Hosted: s.hosted(), FencedItems: s.node.Counters.Fenced},
	}
	out.Ready, out.Reason = d.Ready()
	for _, m := range members.Nodes {
		counts := map[string]*int{
			"alive": &out.Members.Alive, "suspect": &out.Members.Suspect, "dead": &out.Members.Dead,
			"left": &out.Members.Left, "draining": &out.Members.Draining, "isolated": &out.Members.Isolated,
		}
		if n := counts[m.State]; n != nil {
			*n++
		}
		if m.Name == out.Node {
			out.Stages = m.Stages
		}
	}
	known := map[kevlard.NodeID]node.PeerInfo{}
	for _, p := range s.node.Peers {
		known[p.Node] = p
	}
	for _, p := range d.mesh.Peers() {
		l := report.Link{Peer: string(p.Peer.Node), Up: p.Connected, Silent: known[p.Peer.Node].Silent, RTTMS: millis(p.RTT), Transport: d.transportTo(p.Peer.Node)}
		if !p.Connected {
			l.Error = p.LastError
		}
		out.Links = append(out.Links, l)
	}
	out.Problems = append(d.devices.problems(), problems(s, members, out, d.solitude())...)
	return out
}

// solitude says that this node knows no other, and why it was not taken in where it tried.
func (d *Daemon) solitude() report.Problem {
	p := report.Problem{What: "this node is alone in its ring", Fix: "run `kevlard join ADDR`, or set [ring] join"}
	if why, ok := d.ring.Refusal(); ok {
		p.What += fmt.Sprintf(": none of the %d addresses that it tries takes it in: %s: %s", why.Asked, why.Addr, why.Why)
		p.Fix = "mend that, or [ring] join if the address is wrong; it tries for ever, and joins by itself"
	}
	return p
}

// problems lists what is wrong, the worst first; solitude is what to say of a node that
// knows no other.
func problems(s *snapshot, members report.Members, st report.Status, solitude report.Problem) []report.Problem {
	out := []report.Problem{}
	add := func(what, fix string) { out = append(out, report.Problem{What: what, Fix: fix}) }
	switch {
	case st.Stopping:
		add("this node is stopping: its sessions end or move, then it leaves the ring", "wait; `kevlard leave --timeout` and systemctl stop say how long it may take")
	case st.Draining:
		add(because("this node is draining", s.node.Reason), "run `kevlard drain --undo` to take sessions again")
	}
	for _, m := range s.serving {
		if !m.ok {
			add(fmt.Sprintf("model %s has no complete route: layers %s are not served", m.model.Name, joined(m.missing)),
				"start a node with these layers, or see `kevlard topology` and the log of the nodes that should hold them")
		}
	}
	for _, p := range s.node.Cramped {
		add(fmt.Sprintf("layers %s of model %s find no memory: they take %d MiB with the least room for KV, and the hosts that may hold them have %d MiB left", joined(p.Missing), p.Model.Name, mib(p.Needs+1<<20-1), mib(p.Free)),
			"add a host, raise [engine] memory_bytes where a host has more memory, or serve fewer models ([models] serve)")
	}
	out = append(out, distrusted(s)...)
	out = append(out, disagreements(s)...)
	for _, x := range st.Stages {
		if x.Reason != "" {
			add(fmt.Sprintf("stage [%d,%d) here is %s: %s", x.Lo, x.Hi, x.State, x.Reason), "see the log of this node; the engine is restarted by itself")
		}
	}
	for _, f := range s.node.Failed {
		add(fmt.Sprintf("layers %v of model %s could not be loaded here: %s", f.Key.Layers, modelName(s.view, f.Key.Model), f.Reason),
			"others take them; this node tries again later, or when it is restarted")
	}
	alone, self, dead := isolated(members)
	own := members.Nodes[self]
	if alone {
		add(fmt.Sprintf("this node is isolated: none of the %d others that it knows answers", dead),
			fmt.Sprintf("check its network: UDP and TCP %s in both directions; it rejoins by itself", own.Addr))
	}
	for _, m := range members.Nodes {
		if m.Reason == noWayBack {
			add(fmt.Sprintf("node %s: %s", m.Name, m.Reason), fmt.Sprintf("open TCP %s here for that host (firewall, its route to here, [mesh] fabric); `kevlard status` there names its error", own.MeshAddr))
		}
		switch {
		case strings.HasSuffix(m.Reason, refuseEachOther):
			add(fmt.Sprintf("node %s: %s", m.Name, m.Reason), "upgrade the older of the two; builds one version apart serve together")
		case m.State == "isolated" && m.Name != members.Self:
			add(fmt.Sprintf("node %s: %s", m.Name, m.Reason), fmt.Sprintf("check that TCP %s is reachable from here and back (firewall, [mesh] fabric)", m.MeshAddr))
		case m.State == "dead":
			add(fmt.Sprintf("node %s is dead", m.Name), fmt.Sprintf("start it again, or free its name with `kevlard force-leave %s`", m.Name))
		}
	}
	out = append(out, slowStages(s.view, members)...)
	if len(members.Nodes) == 1 {
		out = append(out, solitude)
	}
	if len(members.Nodes) == 2 {
		add("the ring has two nodes: when one dies, the sessions that it owns can't be taken over", "add a third node, a gateway will do")
	}
	if len(s.serving) == 0 && s.at != 0 {
		add("no node of the ring holds a model", "put a model file into a directory of [models] dirs on a host")
	}
	return out
}
