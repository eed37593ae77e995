package sim

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// judge watches a run from outside and keeps what must not be.
type judge struct {
	w          *world
	violations []string
	clients    map[kevlard.SessionID]*client
	order      []*client
	prepared   map[holding]kevlard.Fence // the newest fence that a stage accepted
	deadSince  map[kevlard.SessionID]kevlard.Instant

	newest map[owning]uint64 // the newest epoch that an owner was told of
	epochs map[owning]uint64 // the one it is in
	owners map[epochOf]kevlard.BootID

	poisonKills int
	lateKills   int             // of these by batches that a freeze held up: the session was elsewhere, or over
	spareKilled kevlard.Instant // when poison last killed an engine that no fault is aimed at
	copies      copyJudge
	stats       Stats
}

// holding names a session at one stage of one host.
type holding struct {
	host    int
	session kevlard.SessionID
	lo      int
}

// Stats counts what a run did, so that a test can insist that it did something.
type Stats struct {
	Sessions, Finished, Cancelled, Failed, Lost int
	Tokens, Failovers, Stale, Events            int
	Resumed, Followed                           int // clients that came back; of these to another node
	TakenOver                                   int
	Errors                                      map[string]int
	WorstGap                                    time.Duration

	Moved, Copied, WentOn int // restarts on other nodes; of these with a copy, and those that used it
	Recomputed, AfterCopy int // tokens computed again in all restarts on other nodes, and in those that went on
	Loaded, Rotten        int // positions
	Again, Refused        int // answers of standbys

	Audits uint64 // that agreed, of the hosts' last lives

	Wrong, Found, Banned int // with a liar: tokens that were wrong; lives of hosts that found it, and that believed an honest one no more

	Crowd, Computed int           // sessions that came at once; of these those that computed what all begin with
	CrowdTime       time.Duration // until the last of them had ended
}

func newJudge(w *world) *judge {
	return &judge{
		w: w, clients: map[kevlard.SessionID]*client{}, prepared: map[holding]kevlard.Fence{},
		newest: map[owning]uint64{}, epochs: map[owning]uint64{}, owners: map[epochOf]kevlard.BootID{},
		deadSince: map[kevlard.SessionID]kevlard.Instant{}, copies: newCopyJudge(), stats: Stats{Errors: map[string]int{}},
	}
}

func (j *judge) fail(format string, args ...any) {
	text := fmt.Sprintf("%.4fs: ", time.Duration(j.w.now).Seconds()) + fmt.Sprintf(format, args...)
	j.w.say("", "VIOLATION", "%s", text)
	if len(j.violations) < maxViolations {
		j.violations = append(j.violations, text)
	}
}

// stale is what the judge knows before a machine sees an event.
type stale struct {
	items   int    // items of fenced terms in the event
	dropped uint64 // what the machine had dropped by then
	session kevlard.SessionID
}

func (j *judge) before(h *host, ev node.Event) stale {
	var s stale
	j.evidence(h, ev)
	switch ev := ev.(type) {
	case node.Arrived:
		for _, it := range ev.Frame.Items {
			if f, ok := j.prepared[holding{h.index, it.Session, it.Lo}]; ok && it.Fence.Compare(f) < 0 {
				s.items++
			}
		}
		if s.items > 0 {
			j.stats.Stale += s.items
			s.dropped = j.dropped(h)
		}
	case node.Received:
		if id, f, ok := fenceOf(ev.Message); ok {
			if c := j.clients[id]; c != nil && f.Epoch == c.fence.Epoch && f.Compare(c.fence) < 0 {
				s.session = id
				j.stats.Stale++
			}
		}
	}
	return s
}

func (j *judge) dropped(h *host) uint64 {
	c := h.m.Snapshot(j.w.now).Counters
	return c.Fenced + c.Refused
}

func (j *judge) after(h *host, ev node.Event, effects []node.Effect, s stale) {
	if s.items > 0 {
		if now := j.dropped(h); now < s.dropped+uint64(s.items) {
			j.fail("%s took items of a fenced term", h.id)
		}
	}
	for _, e := range effects {
		switch e := e.(type) {
		case node.Emit:
			if e.Session == s.session {
				j.fail("%s streams a token of %s from an older term", h.id, e.Session)
			}
			j.fenced(h, e.Session)
			if !j.elsewhere(h, e) {
				j.token(h, e)
			}
		case node.Replay:
			j.replayed(h, e)
		case node.Finish:
			j.finish(h, e)
		case node.Report:
			j.accused(h, e)
		case node.Send:
			switch m := e.Message.(type) {
			case protocol.Prepare:
				j.owns(h, m.Session, m.Fence.Epoch, m.OwnerBoot)
				if c := j.clients[m.Session]; c != nil && m.Fence.Epoch >= c.fence.Epoch {
					if m.Fence.Compare(c.fence) < 0 {
						j.fail("%s prepares %s at %v after %v", h.id, m.Session, m.Fence, c.fence)
					}
					j.prepares(c, e, m)
					c.fence = m.Fence
				}
			case protocol.Record:
				j.owns(h, m.Session, m.Epoch, m.Owner.Boot)
			case protocol.Fetch: // it takes the place of an offer
				delete(j.copies.marks, copyID{h.index, h.life, sessionStage{m.Session, m.Stage.Layers}})
			case protocol.Stored:
				j.stored(h, ev, m)
			case protocol.Prepared:
				if m.Refusal == "" {
					j.prepared[holding{h.index, m.Session, m.Lo}] = m.Fence
				}
			}
		case node.RunBatch:
			if len(e.Batch.Parts) == 0 {
				j.fail("%s runs an empty batch", h.id)
			}
		case node.SendFrame:
			for _, it := range e.Frame.Items {
				if c := j.clients[it.Session]; c != nil && it.Start && it.Lo == 0 && c.owner == h && it.Fence == c.fence {
					j.starts(c, it.Pos)
				}
			}
		}
	}
}

// token judges one streamed token.
func (j *judge) token(h *host, e node.Emit) {
	c := j.clients[e.Session]
	switch {
	case c == nil || c.owner != h || c.life != h.life || c.between:
		j.fail("%s streams a token of %s, which it does not own", h.id, e.Session)
	case c.done:
		j.fail("%s: a token after the end", e.Session)
	case e.Index != c.comes():
		j.fail("%s: token %d after %d tokens", e.Session, e.Index, c.comes())
	case c.poison:
		j.fail("%s: a token of a prompt that no engine survives", e.Session)
	case c.comes() >= len(c.want) || c.want[c.comes()].Token != e.Token:
		j.wrong(h, c, "%s: token %d is %d, want it as in the fault-free run %v", e.Session, e.Index, e.Token, c.want[min(c.comes(), len(c.want)):min(c.comes()+1, len(c.want))])
	case !reflect.DeepEqual(c.want[c.comes()].Logprobs, e.Logprobs):
		j.wrong(h, c, "%s: token %d has logprobs %+v, want those of the fault-free run %+v", e.Session, e.Index, e.Logprobs, c.want[c.comes()].Logprobs)
	}
	if c != nil {
		c.took()
	}
	j.stats.Tokens++
}

// honest are the codes with which a session may fail.
func (j *judge) honest() []string {
	codes := []string{"no_route", "poisoned", "capacity", "overloaded", "draining", "session_busy", "session_no_quorum"}
	if j.w.sc.Liar != 0 {
		codes = append(codes, "disputed")
	}
	return codes
}

// reused notes how much of a prompt was found.
func (j *judge) reused(e node.Reused) {
	if c := j.clients[e.Session]; c != nil {
		c.reused = e.Positions
	}
}

// crowd counts what a session of a crowd computed, when it ends.
func (j *judge) crowd(c *client) {
	if !c.crowd {
		return
	}
	j.stats.Crowd++
	if 2*c.reused < j.w.sc.Opening {
		j.stats.Computed++
	}
	j.stats.CrowdTime = j.w.now.Sub(kevlard.Instant(crowdAt))
}

func (j *judge) finish(h *host, e node.Finish) {
	c := j.clients[e.Session]
	if c != nil && c.old[connection{h.index, h.life}] && (c.between || c.done || c.owner != h || c.life != h.life) {
		return // to a connection that is no more
	}
	if c != nil && c.roams && c.owner == h && e.Reason == "error" && e.Err.Code != "disputed" && (c.back || e.Err.Code == "session_busy") { // not yet, or not any more, here
		j.w.leave(c)
		return
	}
	if c != nil && (c.ended == "lost" || j.refused(h, c, e)) {
		return
	}
	if c == nil || c.done || c.at != h {
		j.fail("%s ends %s once too often", h.id, e.Session)
		return
	}
	c.done, c.ended, c.err, c.failovers = true, e.Reason, e.Err, e.Failovers
	j.w.say(h.id, "end", "%s %s %v after %d", c.id, e.Reason, e.Err, c.got)
	c.back = false
	j.stats.Failovers += len(e.Failovers)
	for _, f := range e.Failovers {
		held := c.req.Envelope != nil // tokens are shown only when witnesses have the record
		if f.Detect < 0 || f.Reroute < 0 || f.Restore < 0 || f.AtToken > c.got && !held {
			j.fail("%s: failover %+v", c.id, f)
		}
		if c.must {
			j.stats.WorstGap = max(j.stats.WorstGap, f.Gap())
		}
	}
	switch e.Reason {
	case "stop", "length":
		if c.comes() != len(c.want) || e.Reason != c.reason || !c.roams && h != c.owner && c.replayed != c.got {
			j.wrong(h, c, "%s: %s after %d tokens, want %s after %d", c.id, e.Reason, c.comes(), c.reason, len(c.want))
		}
		j.stats.Finished++
		j.crowd(c)
	case "cancelled":
		if !c.cancelled {
			j.fail("%s: cancelled, but nobody asked", c.id)
		}
		j.stats.Cancelled++
	case "paused":
		c.done, c.ended = false, ""
		if !c.gone {
			j.fail("%s: paused, but its client is there", c.id)
		}
	case "error":
		j.stats.Failed++
		j.failed(c, e.Err)
	default:
		j.fail("%s: ends with %q", c.id, e.Reason)
	}
}

func (j *judge) failed(c *client, err *kevlard.Failure) {
	switch {
	case err == nil || !slices.Contains(j.honest(), err.Code) || err.Status < 400 || err.Message == "":
		j.fail("%s: an error that says nothing: %+v", c.id, err)
		return
	case c.must && err.Code == "no_route" && j.spareKilled > c.submitted: // a stage had no holder for a while
	case c.must && (err.Code != "poisoned" || !slices.Contains(j.w.sc.Kinds, EngineAbort)):
		j.fail("%s: %v, but every stage had a holder all the time", c.id, err)
	case err.Code == "poisoned" && !c.poison && !slices.Contains(j.w.sc.Kinds, EngineAbort):
		j.fail("%s: called poisoned, and is not", c.id)
	case err.Code == "draining" && !slices.Contains(j.w.sc.Kinds, Drain):
		j.fail("%s: draining, and nobody drains", c.id)
	}
	j.stats.Errors[err.Code]++
}

// killed ends the sessions of a dead owner: their clients must reconnect.
func (j *judge) killed(h *host) {
	for _, c := range j.order {
		if c.owner == h && !c.done && !c.between {
			c.done, c.ended = true, "lost"
			j.stats.Lost++
		}
	}
	j.stranded(h)
}

// idle reports whether every session has ended.
func (j *judge) idle() bool {
	return !slices.ContainsFunc(j.order, func(c *client) bool { return !c.done })
}

// enginesAnswer reports whether no engine owes its node an answer any more.
func (j *judge) enginesAnswer() bool {
	return !slices.ContainsFunc(j.w.hosts, func(h *host) bool {
		if h.m == nil {
			return false
		}
		s := h.m.Snapshot(j.w.now)
		return s.KV.Transfers > 0 || slices.ContainsFunc(s.Stages, func(x node.StageInfo) bool { return x.State == topology.Stalled })
	})
}

// survey looks at every node now and then.
func (j *judge) survey() {
	w := j.w
	for _, h := range w.hosts {
		if h.m == nil || h.frozen {
			continue
		}
		s := h.m.Snapshot(w.now)
		for _, x := range s.Stages {
			if x.QueuedRows > x.Sessions*256 {
				j.fail("%s: %d rows wait for %d sessions", h.id, x.QueuedRows, x.Sessions)
			}
			if x.FreeCells > h.cells {
				j.fail("%s: %d cells free of %d", h.id, x.FreeCells, h.cells)
			}
		}
		j.surveyCopies(h, s)
		for _, x := range s.Sessions {
			j.route(h, x)
		}
	}
	w.after(surveyEvery, j.survey)
}

// route judges whether a session sits on a route with a dead node.
func (j *judge) route(h *host, x node.SessionInfo) {
	dead := x.State != "queued" && slices.ContainsFunc(x.Route, func(hop kevlard.Hop) bool { return j.w.byID[hop.Node].m == nil })
	if !dead || h.thawed > j.deadSince[x.ID] {
		delete(j.deadSince, x.ID)
		if !dead {
			return
		}
	}
	since, ok := j.deadSince[x.ID]
	if !ok {
		j.deadSince[x.ID] = j.w.now
		return
	}
	if j.w.now.Sub(since) > deadRoute {
		j.fail("%s sits on %v for %v, and a node of it is dead", x.ID, x.Route, j.w.now.Sub(since))
	}
}

// ended judges what is left when all sessions are over and leases have passed.
func (j *judge) ended() {
	for _, c := range j.order {
		if !c.done {
			j.fail("%s has not ended; %d of %d tokens", c.id, c.got, len(c.want))
		}
		if c.poison && c.done && c.ended == "error" && c.err != nil && c.err.Code == "poisoned" && j.poisonKills < 2 && !slices.Contains(j.w.sc.Kinds, EngineAbort) {
			j.fail("%s: poisoned after %d kills", c.id, j.poisonKills)
		}
	}
	if most := 3 * max(1, j.w.sc.Poison); j.poisonKills-j.lateKills > most {
		j.fail("%d engines were killed by %d poisonous sessions, want at most %d", j.poisonKills, j.w.sc.Poison, most)
	}
	j.whole()
	for _, h := range j.w.hosts {
		if h.m == nil {
			j.fail("%s is dead at the end", h.id)
			continue
		}
		s := h.m.Snapshot(j.w.now)
		j.stats.Audits += s.Audits.Agreed
		if len(s.Sessions) > 0 {
			j.fail("%s still owns %d sessions", h.id, len(s.Sessions))
		}
		j.copiesEnded(h, s)
		for _, x := range s.Stages {
			if x.Sessions != 0 || x.QueuedRows != 0 {
				j.fail("%s: stage %v still holds %d sessions and %d rows", h.id, x.Key.Layers, x.Sessions, x.QueuedRows)
			}
			if x.FreeCells != x.Cells {
				j.fail("%s: stage %v has %d of %d cells free", h.id, x.Key.Layers, x.FreeCells, x.Cells)
			}
		}
	}
}
