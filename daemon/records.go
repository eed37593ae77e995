package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/membership"
	"github.com/kevlard/kevlard/mesh"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/topology"
)

// pullFunc asks a node for its sealed record.
type pullFunc func(ctx context.Context, from kevlard.NodeID) ([]byte, error)

// records joins what gossip says (who, where, which boot, which record version)
// with the node records, which it pulls over the mesh when their version moves,
// into the view. It also holds this node's own record.
type records struct {
	self   kevlard.NodeID
	codec  recordCodec
	key    crypto.PrivKey
	pull   pullFunc
	report func(typ string, peer kevlard.NodeID, cause, detail string)
	log    *slog.Logger
	poke   chan struct{} // capacity 1: our record moved, or a peer came up
	news   chan struct{} // capacity 1: a peer said that its record moved

	present atomic.Uint64 // the version of own: the loop reads it for each ping

	mu     sync.Mutex
	own    record
	bytes  []byte // own, sealed
	others map[kevlard.NodeID]*held
	last   topology.View
}

// held is what is known of another node's record. The pulling fields belong to
// run's goroutine.
type held struct {
	rec record // Node is empty until the first was pulled

	// told is the newest version that the node itself spoke of in the life toldBoot.
	told     uint64
	toldBoot kevlard.BootID

	pulling bool
	refused bool // the last one pulled was bad
	wait    time.Duration
	next    time.Time // not before
}

type pulled struct {
	from kevlard.NodeID
	life kevlard.BootID // whose record was asked for
	rec  record
	err  error
}

func newRecords(own record, key crypto.PrivKey, pull pullFunc, report func(string, kevlard.NodeID, string, string), log *slog.Logger) (*records, error) {
	r := &records{
		self: own.Node, codec: newRecordCodec(), key: key, pull: pull, report: report, log: log,
		poke: make(chan struct{}, 1), news: make(chan struct{}, 1), own: own, others: map[kevlard.NodeID]*held{},
	}
	if err := own.clip().check(); err != nil {
		return nil, fmt.Errorf("this node's record would be refused by others: %w", err)
	}
	var err error
	r.present.Store(own.Version)
	r.bytes, err = r.codec.seal(own.clip(), key)
	return r, err
}

// publish replaces what our record says and returns its new version. The loop
// calls it; signing takes some 30 microseconds.
func (r *records) publish(p node.Publish) (version uint64, changed bool) {
	version, changed, err := r.change(func(own *record) error {
		own.Stages, own.Capacity.Failed, own.Draining = slices.Clone(p.Stages), slices.Clone(p.Failed), p.Draining
		own.Avoid, own.Reason = p.Avoid, p.Reason
		for _, s := range p.Stages { // one whose weights are still to be fetched is known from others only
			if m, ok := r.last.Model(s.Key.Model); ok && !own.know(m) {
				return fmt.Errorf("%d models have stages here", len(own.Models))
			}
		}
		return nil
	})
	if err != nil {
		// The stages held are so few that their record is a fraction of what others take.
		panic(fmt.Sprintf("daemon: record of %d stages: %v", len(p.Stages), err))
	}
	return version, changed
}

// offer says which models are here: the first of them, as many as others take of one
// node; and what its devices have, unless that is nil. It returns how many models that are.
func (r *records) offer(models []LocalModel, devices []topology.Device) (version uint64, changed bool, taken int, err error) {
	for taken = min(len(models), maxModels); ; taken-- {
		version, changed, err = r.change(func(own *record) error {
			if err := own.offer(models[:taken]); err != nil {
				return err
			}
			if devices != nil {
				own.Capacity.Devices = slices.Clone(devices)
			}
			// The rest is for stages and failures, which are bounded and can't be left out.
			b, err := r.codec.enc.Marshal([]any{own.Models, own.Capacity.Weights, own.Capacity.Local})
			if err == nil && len(b) > maxRecord/2 {
				err = fmt.Errorf("models of %d bytes, a node record takes %d", len(b), maxRecord/2)
			}
			return err
		})
		if err == nil || taken == 0 {
			return version, changed, taken, err
		}
	}
}

// lacks says which devices of this node are not there.
func (r *records) lacks(missing string) (version uint64, changed bool, err error) {
	return r.change(func(own *record) error {
		own.Missing = missing
		return nil
	})
}

// change edits our record, which stays as it is if others would not take it.
func (r *records) change(edit func(*record) error) (version uint64, changed bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.own
	if err := edit(&next); err != nil {
		return r.own.Version, false, err
	}
	if reflect.DeepEqual(next, r.own) {
		return r.own.Version, false, nil
	}
	next.Version++
	b, err := r.codec.seal(next.clip(), r.key)
	if err != nil {
		return r.own.Version, false, err
	}
	r.own, r.bytes = next, b
	r.present.Store(next.Version)
	r.stir()
	return next.Version, true, nil
}

// sealed returns our record for others.
func (r *records) sealed() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes
}

// version is that of our record.
func (r *records) version() uint64 { return r.present.Load() }

// hear takes a node's own word on the version of its record, ahead of gossip.
func (r *records) hear(from kevlard.NodeID, boot kevlard.BootID, version uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.others[from]
	if h == nil || h.toldBoot == boot && h.told >= version {
		return
	}
	h.told, h.toldBoot = version, boot
	if !h.refused {
		h.wait, h.next = 0, time.Time{}
	}
	if h.rec.Boot == boot && h.rec.Version >= version {
		return
	}
	select {
	case r.news <- struct{}{}:
	default: // run has not yet looked
	}
}

// stir makes run look again.
func (r *records) stir() {
	select {
	case r.poke <- struct{}{}:
	default: // run has not yet looked
	}
}

// of returns the record held of a member's present boot; our own for ourselves.
func (r *records) of(m membership.Member) record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lockedOf(m)
}

func (r *records) lockedOf(m membership.Member) record {
	if m.Name == r.self {
		return r.own
	}
	if h := r.others[m.Name]; h != nil && h.rec.Boot == m.Meta.Boot {
		return h.rec
	}
	return record{}
}

// run follows the membership until ctx ends: it tells the mesh whom to keep
// connected, pulls records, and gives changed views to emit.
func (r *records) run(ctx context.Context, ring *membership.Ring, setPeers func([]mesh.Address), emit func(topology.View)) error {
	var pulls sync.WaitGroup
	defer pulls.Wait()
	slots := make(chan struct{}, maxPulls)
	results := make(chan pulled)
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		members := ring.Members()
		setPeers(r.addresses(members))
		wait := r.refresh(members, time.Now(), func(m membership.Member) {
			pulls.Go(func() {
				p := r.fetch(ctx, m, slots)
				select {
				case results <- p:
				case <-ctx.Done():
				}
			})
		})
		if v, changed := r.view(members, ring.Absent()); changed {
			emit(v)
		}
		retry.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-ring.Changed():
		case <-retry.C:
		case <-r.news:
		case <-r.poke:
			r.hurry()
		case p := <-results:
			r.take(p)
		}
	}
}

// addresses lists the mesh addresses of all members that are alive.
func (r *records) addresses(members []membership.Member) []mesh.Address {
	var out []mesh.Address
	for _, m := range members {
		if (m.State == membership.StateAlive || m.State == membership.StateSuspect) && m.Name != r.self && m.Meta.Mesh != "" {
			out = append(out, mesh.Address{Node: m.Name, ID: m.Meta.Peer, Boot: m.Meta.Boot, Addr: m.Meta.Mesh})
		}
	}
	return out
}

// refresh forgets nodes that the ring forgot, starts a pull for each record that
// moved, and returns how long until the next one may be tried.
func (r *records) refresh(members []membership.Member, now time.Time, start func(membership.Member)) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait := time.Hour
	known := map[kevlard.NodeID]bool{}
	for _, m := range members {
		if m.Name == r.self {
			continue
		}
		known[m.Name] = true
		h := r.others[m.Name]
		if h == nil {
			h = &held{}
			r.others[m.Name] = h
		}
		newest := m.Meta.Record
		if h.toldBoot == m.Meta.Boot {
			newest = max(newest, h.told)
		}
		current := h.rec.Boot == m.Meta.Boot && h.rec.Version >= newest
		if h.pulling || current || m.Meta.Record == 0 || m.State != membership.StateAlive {
			continue
		}
		if now.Before(h.next) {
			wait = min(wait, h.next.Sub(now))
			continue
		}
		h.pulling = true
		start(m)
	}
	maps.DeleteFunc(r.others, func(n kevlard.NodeID, h *held) bool { return !known[n] && !h.pulling })
	return wait
}

// fetch pulls one record and verifies that it is the member's.
func (r *records) fetch(ctx context.Context, m membership.Member, slots chan struct{}) pulled {
	p := pulled{from: m.Name, life: m.Meta.Boot}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		p.err = context.Cause(ctx)
		return p
	}
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	b, err := r.pull(ctx, m.Name)
	if err != nil {
		p.err = fmt.Errorf("pull the record of node %s: %w", m.Name, err)
		return p
	}
	if p.rec, err = r.codec.open(b, m.Meta.Peer); err == nil && p.rec.Node != m.Name {
		err = fmt.Errorf("%w: it is of node %.80q", errRecord, p.rec.Node)
	}
	if err != nil {
		p.err = fmt.Errorf("record of node %s: %w", m.Name, err)
	}
	return p
}

// take keeps a pulled record if it is news, or plans the next try.
func (r *records) take(p pulled) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.others[p.from]
	if h == nil {
		return
	}
	h.pulling = false
	if p.err != nil {
		h.wait = min(max(2*h.wait, pullRetryMin), pullRetryMax)
		h.next = time.Now().Add(h.wait)
		if h.refused = errors.Is(p.err, errRecord); h.refused {
			r.report("record-refused", p.from, "", p.err.Error())
		}
		if !errors.Is(p.err, mesh.ErrNotConnected) { // that is tried again when it is
			r.log.Debug("node record not pulled", "peer", p.from, "err", p.err)
		}
		return
	}
	h.refused = false
	if p.rec.Boot != h.rec.Boot || p.rec.Version > h.rec.Version {
		h.rec = p.rec
		if p.rec.Boot == p.life {
			h.wait, h.next = 0, time.Time{}
			return
		}
		// Of another life: gossip may be late, or the node says what is not so.
	}
	// What was said of it is ahead of what the node itself says; ask again, but not at once.
	h.wait = min(max(2*h.wait, pullRetryMin), pullRetryMax)
	h.next = time.Now().Add(h.wait)
}

// hurry lets every pull that waits be tried at once, unless what came was bad.
func (r *records) hurry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.others {
		if !h.refused {
			h.next = time.Time{}
		}
	}
}

// view builds the view and reports whether it differs from the last one.
func (r *records) view(members []membership.Member, absent int) (topology.View, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := topology.View{Nodes: make([]topology.Node, 0, len(members)), Absent: absent}
	for _, m := range members {
		rec := r.lockedOf(m)
		if rec.Node == "" && m.State == membership.StateDead {
			// What a dead node held shows what is missing.
			if h := r.others[m.Name]; h != nil {
				rec = h.rec
			}
		}
		v.Nodes = append(v.Nodes, topology.Node{
			ID: m.Name, Boot: m.Meta.Boot, Role: m.Meta.Role, Zone: rec.Zone, State: state(m, rec), Avoid: rec.Avoid, Models: rec.Models, Stages: rec.Stages, Capacity: rec.Capacity,
		})
	}
	slices.SortFunc(v.Nodes, func(a, b topology.Node) int { return cmp.Compare(a.ID, b.ID) })
	if reflect.DeepEqual(v, r.last) {
		return v, false
	}
	r.last = v
	return v, true
}

// state is what the view says of a member.
func state(m membership.Member, rec record) topology.State {
	switch m.State {
	case membership.StateDead:
		return topology.Dead
	case membership.StateLeft:
		return topology.Left
	}
	if rec.Draining || m.Meta.Leaving {
		return topology.Draining
	}
	if m.State == membership.StateSuspect {
		return topology.Suspect
	}
	return topology.Alive
}
