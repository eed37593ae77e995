// Package index decides what KV a node keeps for others: which positions of which
// sessions, in which slots of its block memory, under which names. It is pure; the
// bytes are the shell's.
//
// A session's KV at a stage is cut into blocks of BlockTokens positions. A full
// block has a name, a hash over the tokens of it and of all blocks before it
// (Name), and never changes; the last block of a copy is open and only grows. KV is
// found by its tokens: through the session's own copy, whose tokens are kept, or
// through the names. What a stage of this node computed is kept under its names too
// (Keep), for sessions that begin alike. When a copy goes, its blocks stay until their
// room is needed, its open block as a tail.
//
// # Slots
//
// Each stage has its own pool of slots of one block each. A slot is in use while a
// copy refers to it, a load has it pinned, or rows are on their way into it; only
// then is it free, or, when it has a name, cached until the room is needed.
package index

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// Config bounds an index. Zero fields take the default.
type Config struct {
	// BlockTokens is the positions of one block. Default 32.
	BlockTokens int
	// Bytes is the most block memory in use. Default 256 MiB.
	Bytes int64
	// Copies is the most sessions for which copies are kept. Default 1024.
	Copies int
	// Lease is how long a copy stays without rows or renewal. Default 10 s.
	Lease time.Duration
	// Hot says that copies are also kept in the engine's memory where this node has
	// the stage: the index then tells which copies have gone.
	Hot bool
}

func (c Config) withDefaults() Config {
	c.BlockTokens = cmp.Or(c.BlockTokens, 32)
	c.Bytes = cmp.Or(c.Bytes, 256<<20)
	c.Copies = cmp.Or(c.Copies, 1024)
	c.Lease = cmp.Or(c.Lease, 10*time.Second)
	return c
}

// Run is a run of positions in block memory: N of them from At on in a slot.
type Run struct{ Slot, At, N int }

// Counters only grow.
type Counters struct {
	Damaged    uint64 // positions whose checksum was wrong, on arrival or on use
	Refused    uint64 // offers and pieces refused for room
	Stale      uint64 // offers and pieces of an older fence, or of a session that is over
	Gaps       uint64 // pieces that do not continue what is held
	Diverged   uint64 // blocks of one name with different bytes
	Evicted    uint64 // cached blocks whose room was needed
	Positions  uint64 // stored
	Kept       uint64 // stored of what stages here computed
	Reused     uint64 // positions that an offer found already here
	LeaseEnded uint64
}

// Index is not safe for concurrent use.
type Index struct {
	cfg      Config
	pools    map[kevlard.StageKey]*pool
	copies   map[copyKey]*copied
	pieces   map[uint64]*arrival
	tombs    tombs
	due      kevlard.Instant // no lease ends before
	used     int64           // bytes of the slots that are not free
	cached   int64           // bytes of the blocks in cache
	pins     int             // of all blocks
	gone     []Gone
	freed    map[slotKey]struct{} // since TakeFreed
	cache    list                 // blocks that only their names hold, least recently used first
	leaves   leaves               // of these, those that no block follows
	uses     uint64               // numbers the uses of blocks
	counters Counters
}

type copyKey struct {
	session kevlard.SessionID
	stage   kevlard.StageKey
}

// copied is the KV of one session at one stage, as far as it is held.
type copied struct {
	key       copyKey
	pool      *pool
	fence     kevlard.Fence
	owner     kevlard.NodeID
	ownerBoot kevlard.BootID
	source    kevlard.NodeID
	class     string
	salt      string
	positions int // the most it can ever hold
	seed      Name
	tokens    []kevlard.Token // of the positions that have a place
	stored    int             // leading positions that are stored and checked
	blocks    []*block
	waiting   []*arrival // on their way into their places, in order
	number    uint64     // of the offer
	try       uint64     // grows each time the sender is told to go on from stored
	lease     kevlard.Instant
}

// arrival is a piece between its arrival and its storing.
type arrival struct {
	piece  uint64
	copied *copied // nil when the copy is gone
	from   kevlard.NodeID
	fence  kevlard.Fence
	end    kevlard.Pos
	sums   []uint64
	blocks []*block // pinned; of this node's own, held
	done   bool

	// Of rows that a stage of this node computed: the name before them, their tokens.
	before Name
	tokens []kevlard.Token
}

// New returns an empty index.
func New(cfg Config) *Index {
	cfg = cfg.withDefaults()
	return &Index{
		cfg: cfg, pools: map[kevlard.StageKey]*pool{}, copies: map[copyKey]*copied{}, pieces: map[uint64]*arrival{}, freed: map[slotKey]struct{}{},
		tombs: newTombs(4 * cfg.Copies), due: kevlard.Never,
	}
}

// Counters returns a copy of the counters.
func (x *Index) Counters() Counters { return x.counters }

// Usage says what the index holds.
type Usage struct {
	Copies      int
	Bytes       int64 // of block memory in use
	CachedBytes int64 // of these, held by names only
	Pins        int   // references of loads and of rows under way
}

// Usage counts what is held.
func (x *Index) Usage() Usage {
	return Usage{Copies: len(x.copies), Bytes: x.used, CachedBytes: x.cached, Pins: x.pins}
}

// Offer takes a stage's wish to have a copy kept here, and says how much of it is
// here already.
func (x *Index) Offer(now kevlard.Instant, from kevlard.NodeID, o protocol.Offer) protocol.Stored {
	answer := protocol.Stored{Session: o.Session, Fence: o.Fence, Stage: o.Stage, Number: o.Number}
	refuse := func(why protocol.Refusal, format string, args ...any) protocol.Stored {
		answer.Refusal, answer.Detail = why, fmt.Sprintf(format, args...)
		return answer
	}
	key := copyKey{o.Session, o.Stage}
	c := x.copies[key]
	if c != nil && c.stale(o.Fence, o.OwnerBoot) || c == nil && x.tombs.covers(o.Session, o.Stage.Layers.Lo, o.Fence) {
		x.counters.Stale++
		return refuse(protocol.RefusedStale, "the session went on without this sender, or is over")
	}
	seed := Seed(o.Stage, o.Class, o.Salt)
	if c != nil && c.seed != seed {
		x.forget(c)
		c = nil
	}
	if c == nil {
		p := x.pools[o.Stage]
		switch {
		case p != nil && p.cellBytes != o.CellBytes:
			return refuse(protocol.RefusedNoStage, "one position takes %d bytes at the sender and %d here", o.CellBytes, p.cellBytes)
		case len(x.copies) >= x.cfg.Copies:
			x.counters.Refused++
			return refuse(protocol.RefusedCapacity, "copies of %d sessions, the most that are kept", len(x.copies))
		case p == nil:
			p = newPool(o.Stage, o.CellBytes, x.cfg.BlockTokens)
			x.pools[o.Stage] = p
		}
		c = &copied{key: key, pool: p, class: o.Class, seed: seed}
		p.copies++
		x.copies[key] = c
	} else {
		x.abandon(c)
		x.cut(c, commonPrefix(c.tokens[:c.stored], o.Tokens))
	}
	c.salt, c.positions, c.number = o.Salt, o.Positions, o.Number
	if c.source != from {
		c.try = 0
	}
	c.fence, c.owner, c.ownerBoot, c.source, c.lease = o.Fence, o.Owner, o.OwnerBoot, from, now.Add(x.cfg.Lease)
	x.due = min(x.due, c.lease)
	x.adopt(c, o.Tokens)
	answer.Through, answer.Try = c.stored, c.try
	x.counters.Reused += uint64(c.stored)
	return answer
}

// stale reports whether a sender is of an older fence, or claims an epoch for
// another owner.
func (c *copied) stale(f kevlard.Fence, boot kevlard.BootID) bool {
	return f.Compare(c.fence) < 0 || f.Epoch == c.fence.Epoch && boot != c.ownerBoot
}

// adopt extends a copy by the named blocks that hold the tokens that follow.
func (x *Index) adopt(c *copied, tokens []kevlard.Token) {
	size := x.cfg.BlockTokens
	if len(c.tokens)%size != 0 || c.stored != len(c.tokens) {
		return
	}
	for at := c.stored; at+size <= len(tokens); at += size {
		b := c.pool.names[Chain(c.last(), tokens[at:at+size])]
		if b == nil {
			return
		}
		x.use(b)
		c.blocks = append(c.blocks, b)
		c.tokens = append(c.tokens, tokens[at:at+size]...)
		c.stored += size
	}
}

// last returns the name of the last block of a copy whose blocks are all full.
func (c *copied) last() Name {
	if len(c.blocks) == 0 {
		return c.seed
	}
	return c.blocks[len(c.blocks)-1].name
}

// lastBefore returns the name before block i.
func (c *copied) lastBefore(i int) Name {
	if i == 0 {
		return c.seed
	}
	return c.blocks[i-1].name
}

// cut shortens a copy to at most n positions. A block that is cut in the middle is
// let go as a whole if it is full, because named blocks never change, or if
// somebody reads or writes it.
func (x *Index) cut(c *copied, n int) {
	if n >= len(c.tokens) {
		return
	}
	size := x.cfg.BlockTokens
	keep := (n + size - 1) / size
	if rest := n - (keep-1)*size; keep > 0 && rest < size {
		if b := c.blocks[keep-1]; b.named() || b.pins > 0 {
			keep--
			n = keep * size
		} else {
			b.open = b.open[:min(rest, len(b.open))]
		}
	}
	for _, b := range c.blocks[keep:] {
		x.unuse(b)
	}
	c.blocks = c.blocks[:keep]
	c.tokens = c.tokens[:n:n] // what was handed out must not change
	c.stored = min(c.stored, n)
}

// abandon forgets the pieces on their way into a copy: their places stay pinned
// until they are stored, and nothing of them is used.
func (x *Index) abandon(c *copied) {
	for _, a := range c.waiting {
		a.copied = nil
	}
	c.waiting = nil
	x.cut(c, c.stored)
}

// forget drops a copy.
func (x *Index) forget(c *copied) {
	delete(x.copies, c.key)
	for _, a := range c.waiting {
		a.copied = nil
	}
	for i, b := range slices.Backward(c.blocks) {
		if at := i * x.cfg.BlockTokens; b.named() || c.stored <= at {
			x.unuse(b)
		} else {
			x.end(b, c.lastBefore(i), c.tokens[at:c.stored])
		}
	}
	c.blocks, c.waiting = nil, nil
	if x.cfg.Hot {
		x.gone = append(x.gone, Gone{c.key.stage, c.key.session})
	}
	c.pool.copies--
	x.settlePool(c.pool)
}

// Release gives up the copy of a session at a stage, if there is one. Its blocks stay as
// long as their room is not wanted.
func (x *Index) Release(stage kevlard.StageKey, id kevlard.SessionID) {
	if c := x.copies[copyKey{id, stage}]; c != nil {
		x.forget(c)
	}
}

// Close ends a session at the stages that start at layer lo, for its owner.
func (x *Index) Close(from kevlard.NodeID, id kevlard.SessionID, lo int, fence kevlard.Fence) {
	for _, c := range x.sorted() {
		switch {
		case c.key.session != id || c.key.stage.Layers.Lo != lo:
		case c.owner != from:
			x.counters.Stale++
			return
		case fence.Compare(c.fence) < 0:
			x.counters.Stale++
		default:
			x.forget(c)
		}
	}
	x.tombs.add(id, lo, fence)
}

// OwnerGone drops the copies of an owner's lives before boot, and of boot itself
// if that is dead.
func (x *Index) OwnerGone(owner kevlard.NodeID, boot kevlard.BootID, dead bool) {
	for _, c := range x.sorted() {
		if c.owner == owner && (c.ownerBoot < boot || dead && c.ownerBoot == boot) {
			x.forget(c)
		}
	}
}

// Renew extends the leases of an owner's sessions.
func (x *Index) Renew(now kevlard.Instant, owner kevlard.NodeID, ids []kevlard.SessionID) {
	for stage := range x.pools {
		for _, id := range ids {
			if c := x.copies[copyKey{id, stage}]; c != nil && c.owner == owner {
				c.lease = now.Add(x.cfg.Lease)
			}
		}
	}
}

// Deadline returns when Expire must be called.
func (x *Index) Deadline() kevlard.Instant { return x.due }

// Expire drops the copies whose leases have ended.
func (x *Index) Expire(now kevlard.Instant) {
	if now < x.due {
		return
	}
	x.due = kevlard.Never
	for _, c := range x.sorted() {
		if now >= c.lease {
			x.counters.LeaseEnded++
			x.forget(c)
			continue
		}
		x.due = min(x.due, c.lease)
	}
}

// Shrink makes do with so many bytes from now on: cached blocks go first, then
// copies, the latest first. It returns the refusals that their senders must get.
func (x *Index) Shrink(bytes int64) []Answer {
	x.cfg.Bytes = bytes
	var out []Answer
	all := x.sorted()
	for x.used > bytes {
		if x.evict() {
			continue
		}
		if len(all) == 0 {
			return out // the rest is pinned
		}
		c := all[len(all)-1]
		all = all[:len(all)-1]
		out = append(out, x.dismiss(c))
	}
	return out
}

// dismiss drops a copy and says so to its sender.
func (x *Index) dismiss(c *copied) Answer {
	x.counters.Refused++
	x.forget(c)
	return Answer{c.source, protocol.Stored{
		Session: c.key.session, Fence: c.fence, Stage: c.key.stage, Refusal: protocol.RefusedCapacity, Number: c.number,
		Detail: fmt.Sprintf("%d bytes of block memory, all in use", x.cfg.Bytes),
	}}
}

// sorted returns the copies in the order of session and stage.
func (x *Index) sorted() []*copied {
	return slices.SortedFunc(maps.Values(x.copies), func(a, b *copied) int {
		return cmp.Or(cmp.Compare(a.key.session, b.key.session), a.key.stage.Compare(b.key.stage))
	})
}

func commonPrefix(a, b []kevlard.Token) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
