package index

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// place is one position of block memory.
type place struct {
	stage    kevlard.StageKey
	slot, at int
}

// cell is what stands there: a hash of all that the KV of a position depends on.
type cell struct {
	content uint64
	rotten  bool // damaged at rest: a checksum would show it
}

// underway is a piece that has places and is not stored yet.
type underway struct {
	id     uint64
	stage  kevlard.StageKey
	runs   []Run
	values []uint64
}

// reading is a load that has not ended.
type reading struct {
	stage  kevlard.StageKey
	pinned Pinned
	values []uint64
}

// talker is one session as its owner and its sending stage know it.
type talker struct {
	id    kevlard.SessionID
	owner kevlard.NodeID
	salt  string
	log   []kevlard.Token
	term  uint64
}

// stream is a copy as its sender sees it.
type stream struct {
	source kevlard.NodeID
	term   uint64
	next   int // position of the next piece
	acked  int
	try    uint64
}

// model drives an index with everything that a shell and its peers could do, keeps
// the memory, and compares.
type model struct {
	x       *Index
	now     kevlard.Instant
	memory  map[place]cell
	pieces  []underway
	loads   []reading
	talkers []*talker
	streams map[copyKey]*stream
	stages  []kevlard.StageKey // that sessions run through
	pieceID uint64
	limit   int64
	shrunk  bool // what was pinned when the limit fell may be over it
	size    int
}

const (
	modelClass = "toy"
	cellBytes  = 8
)

func modelStages() []kevlard.StageKey {
	return []kevlard.StageKey{
		{Model: kevlard.Digest{1}, Layers: kevlard.Layers{Lo: 0, Hi: 2}},
		{Model: kevlard.Digest{1}, Layers: kevlard.Layers{Lo: 0, Hi: 4}},
		{Model: kevlard.Digest{2}, Layers: kevlard.Layers{Lo: 2, Hi: 4}},
	}
}

// content is the KV of the last of tokens, as an engine would compute it.
func content(stage kevlard.StageKey, salt string, tokens []kevlard.Token) uint64 {
	name := Chain(Seed(stage, modelClass, salt), tokens)
	return binary.LittleEndian.Uint64(name[:])
}

func contents(stage kevlard.StageKey, salt string, tokens []kevlard.Token, from, to int) []uint64 {
	var out []uint64
	for i := from; i < to; i++ {
		out = append(out, content(stage, salt, tokens[:i+1]))
	}
	return out
}

func newModel(t *rapid.T) *model {
	size := rapid.SampledFrom([]int{1, 3, 4}).Draw(t, "block")
	limit := int64(rapid.IntRange(2, 40).Draw(t, "blocks") * size * cellBytes)
	m := &model{
		x:   New(Config{BlockTokens: size, Bytes: limit, Copies: rapid.IntRange(1, 12).Draw(t, "copies")}),
		now: 1, memory: map[place]cell{}, streams: map[copyKey]*stream{}, limit: limit, size: size,
	}
	base := rapid.SliceOfN(rapid.Int32Range(0, 1), 40, 40).Draw(t, "base")
	m.stages = modelStages()[:rapid.IntRange(1, 3).Draw(t, "stages")]
	for i := range rapid.IntRange(1, 4).Draw(t, "sessions") {
		alike := rapid.IntRange(0, 40).Draw(t, "alike")
		log := append(slices.Clone(base[:alike]), rapid.SliceOfN(rapid.Int32Range(0, 3), 40-alike, 40-alike).Draw(t, "rest")...)
		salt := rapid.SampledFrom([]string{"", "", "tenant"}).Draw(t, "salt")
		m.talkers = append(m.talkers, &talker{
			id: kevlard.SessionID(fmt.Sprintf("s%d", i)), owner: kevlard.NodeID(fmt.Sprintf("o%d", i%2)), salt: salt, log: log, term: 5,
		})
	}
	return m
}

func (m *model) draw(t *rapid.T) (*talker, kevlard.StageKey) {
	return rapid.SampledFrom(m.talkers).Draw(t, "session"), rapid.SampledFrom(m.stages).Draw(t, "stage")
}

func (m *model) offer(t *rapid.T) {
	s, stage := m.draw(t)
	if rapid.Bool().Draw(t, "re-routed") {
		s.term++
	}
	o := protocol.Offer{
		Session: s.id, Fence: kevlard.Fence{Epoch: 1, Term: s.term}, Owner: s.owner, OwnerBoot: kevlard.BootID(s.owner + ".1"), Stage: stage,
		Class: modelClass, CellBytes: cellBytes, Salt: s.salt, Tokens: s.log[:rapid.IntRange(1, len(s.log)).Draw(t, "known")], Positions: len(s.log),
	}
	source := rapid.SampledFrom([]kevlard.NodeID{"a", "b"}).Draw(t, "source")
	if rapid.IntRange(0, 9).Draw(t, "late") == 0 {
		o.Fence.Term--
	}
	key := copyKey{s.id, stage}
	a := m.x.Offer(m.now, source, o)
	switch {
	case a.Refusal == protocol.RefusedStale:
		if o.Fence.Term == s.term {
			t.Fatalf("an offer at the newest term, %d, is stale", s.term)
		}
	case a.Refusal == "":
		if a.Through > len(o.Tokens) {
			t.Fatalf("through %d of %d tokens", a.Through, len(o.Tokens))
		}
		m.streams[key] = &stream{source, o.Fence.Term, a.Through, a.Through, a.Try}
	}
}

// diverge lets a session go on with other tokens, as a re-route to another class
// of engine may.
func (m *model) diverge(t *rapid.T) {
	s := rapid.SampledFrom(m.talkers).Draw(t, "session")
	at := rapid.IntRange(0, len(s.log)-1).Draw(t, "at")
	s.log = append(slices.Clone(s.log[:at]), rapid.SliceOfN(rapid.Int32Range(0, 3), len(s.log)-at, len(s.log)-at).Draw(t, "rest")...)
	s.term++
	for _, stage := range modelStages() { // no sender goes on before it has offered anew
		delete(m.streams, copyKey{s.id, stage})
	}
}

func (m *model) piece(t *rapid.T) {
	s, stage := m.draw(t)
	key := copyKey{s.id, stage}
	st := m.streams[key]
	if st == nil || st.next >= len(s.log) {
		return
	}
	pos := st.next
	n := rapid.IntRange(1, min(10, len(s.log)-pos)).Draw(t, "n")
	r := protocol.Rows{Session: s.id, Fence: kevlard.Fence{Epoch: 1, Term: st.term}, Stage: stage, Class: modelClass, CellBytes: cellBytes, Pos: pos, Tokens: s.log[pos : pos+n], Try: st.try}
	intact, from := true, st.source
	fault := rapid.SampledFrom([]string{"", "", "", "", "", "damaged", "gap", "stale", "class", "source"}).Draw(t, "fault")
	switch fault {
	case "damaged":
		intact = false
	case "gap":
		r.Pos++
	case "stale":
		r.Fence.Term--
	case "class":
		r.Class = "other"
	case "source":
		from = "c"
	}
	r.Sums = contents(stage, s.salt, s.log, pos, pos+n)
	m.pieceID++
	runs, a := m.x.Arrived(m.now, from, m.pieceID, r, intact)
	if fault != "" && runs != nil {
		t.Fatalf("a %s piece got places %v", fault, runs)
	}
	total := 0
	for _, run := range runs {
		total += run.N
		for i := range run.N { // from now on anything may stand there
			m.memory[place{stage, run.Slot, run.At + i}] = cell{content: 0xbad}
		}
	}
	if runs != nil {
		if total != n {
			t.Fatalf("%d positions got %d places", n, total)
		}
		st.next += n
		m.pieces = append(m.pieces, underway{m.pieceID, stage, runs, r.Sums})
	} else if fault == "" && a == nil {
		t.Fatalf("a good piece at %d is dropped in silence", pos)
	}
	if a != nil {
		m.answer(t, key, *a)
	}
}

// keep takes rows that a stage here computed.
func (m *model) keep(t *rapid.T) {
	s, stage := m.draw(t)
	from := rapid.IntRange(0, (len(s.log)-1)/m.size).Draw(t, "from") * m.size
	to := rapid.IntRange(from+1, len(s.log)).Draw(t, "to")
	m.pieceID++
	values := contents(stage, s.salt, s.log, from, to)
	runs := m.x.Keep(m.pieceID, protocol.Rows{
		Session: s.id, Stage: stage, Class: modelClass, CellBytes: cellBytes, Pos: from, Tokens: s.log[from:to:to], Sums: values,
		Before: m.name(stage, s.salt, s.log[:from]),
	})
	total := 0
	for _, run := range runs {
		total += run.N
		for i := range run.N {
			m.memory[place{stage, run.Slot, run.At + i}] = cell{content: 0xbad}
		}
	}
	if runs == nil {
		return
	}
	if total != to-from {
		t.Fatalf("%d positions got %d places", to-from, total)
	}
	m.pieces = append(m.pieces, underway{m.pieceID, stage, runs, values})
}

// touch must change nothing but the order of eviction.
func (m *model) touch(t *rapid.T) {
	s, stage := m.draw(t)
	m.x.Touch(stage, modelClass, s.salt, s.log)
	if held := m.x.Held(stage, modelClass, s.salt, s.log); held > len(s.log) {
		t.Fatalf("%d of %d positions are held", held, len(s.log))
	}
}

// answer is the sender's side.
func (m *model) answer(t *rapid.T, key copyKey, a Answer) {
	st := m.streams[key]
	switch {
	case st == nil || a.To != st.source || a.Message.Fence.Term < st.term:
	case a.Message.Refusal != "":
		delete(m.streams, key)
	case a.Message.Again:
		st.next, st.acked, st.try = a.Message.Through, a.Message.Through, a.Message.Try
	case a.Message.Through < st.acked || a.Message.Through > st.next:
		t.Fatalf("%v: acknowledged %d after %d, sent %d", key, a.Message.Through, st.acked, st.next)
	default:
		st.acked = a.Message.Through
	}
}

// store ends the storing of any piece under way: the mover keeps no order.
func (m *model) store(t *rapid.T) {
	if len(m.pieces) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.pieces)-1).Draw(t, "which")
	p := m.pieces[i]
	m.pieces = slices.Delete(m.pieces, i, i+1)
	k := 0
	for _, run := range p.runs {
		for at := range run.N {
			m.memory[place{p.stage, run.Slot, run.At + at}] = cell{content: p.values[k]}
			k++
		}
	}
	if a := m.x.Stored(m.now, p.id); a != nil {
		m.answer(t, copyKey{a.Message.Session, a.Message.Stage}, *a)
	}
}

func (m *model) pin(t *rapid.T) {
	s, stage := m.draw(t)
	id := s.id
	if rapid.IntRange(0, 3).Draw(t, "other") == 0 {
		id = rapid.SampledFrom(m.talkers).Draw(t, "asker").id
	}
	tokens := s.log[:rapid.IntRange(1, len(s.log)).Draw(t, "known")]
	from := rapid.IntRange(0, len(tokens)).Draw(t, "from")
	p := m.x.Pin(stage, modelClass, s.salt, id, tokens, from)
	if p.N < from || p.N > len(tokens) {
		t.Fatalf("pinned to %d from %d of %d", p.N, from, len(tokens))
	}
	if c := m.x.copies[copyKey{id, stage}]; c != nil && c.seed == Seed(stage, modelClass, s.salt) {
		if own := commonPrefix(c.tokens[:c.stored], tokens); p.N < own && p.N < len(tokens) && own > from {
			t.Fatalf("pinned to %d, the session's own copy reaches %d", p.N, own)
		}
	}
	named := 0
	if pool := m.x.pools[stage]; pool != nil {
		for named+m.size <= len(tokens) && pool.names[m.name(stage, s.salt, tokens[:named+m.size])] != nil {
			named += m.size
		}
	}
	if p.N < named && named > from {
		t.Fatalf("pinned to %d, names reach %d", p.N, named)
	}
	if held := m.x.Held(stage, modelClass, s.salt, tokens); p.N < held && held > from {
		t.Fatalf("pinned to %d, held are %d", p.N, held)
	}
	l := reading{stage, p, contents(stage, s.salt, tokens, from, p.N)}
	at := from
	for _, run := range p.Runs {
		if run.At != at%m.size || run.At+run.N > m.size {
			t.Fatalf("position %d in run %+v", at, run)
		}
		at += run.N
	}
	if at != p.N {
		t.Fatalf("runs end at %d, want %d", at, p.N)
	}
	m.loads = append(m.loads, l)
}

// name is the name of the block that ends with tokens.
func (m *model) name(stage kevlard.StageKey, salt string, tokens []kevlard.Token) Name {
	name := Seed(stage, modelClass, salt)
	for at := 0; at < len(tokens); at += m.size {
		name = Chain(name, tokens[at:at+m.size])
	}
	return name
}

func (m *model) unpin(t *rapid.T) {
	if len(m.loads) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.loads)-1).Draw(t, "which")
	l := m.loads[i]
	m.loads = slices.Delete(m.loads, i, i+1)
	good, damaged := 0, false
	for _, run := range l.pinned.Runs {
		for at := range run.N {
			damaged = damaged || m.memory[place{l.stage, run.Slot, run.At + at}].rotten
			if !damaged {
				good++
			}
		}
	}
	m.x.Unpin(l.pinned, good, damaged)
	if !damaged {
		return
	}
	at := 0
	for good >= l.pinned.Runs[at].N {
		good -= l.pinned.Runs[at].N
		at++
	}
	bad := l.pinned.blocks[at]
	if bad.found {
		t.Fatalf("slot %d was found damaged and is found", bad.slot)
	}
	for _, c := range m.x.copies {
		if slices.Contains(c.blocks, bad) {
			t.Fatalf("slot %d was found damaged, and %v keeps it", bad.slot, c.key)
		}
	}
}

// rot damages a position of memory.
func (m *model) rot(t *rapid.T) {
	if len(m.loads) == 0 {
		return
	}
	l := rapid.SampledFrom(m.loads).Draw(t, "load")
	if len(l.pinned.Runs) == 0 {
		return
	}
	run := rapid.SampledFrom(l.pinned.Runs).Draw(t, "run")
	p := place{l.stage, run.Slot, run.At + rapid.IntRange(0, run.N-1).Draw(t, "at")}
	c := m.memory[p]
	c.rotten = true
	m.memory[p] = c
}

func (m *model) close(t *rapid.T) {
	s, stage := m.draw(t)
	by, fence := s.owner, kevlard.Fence{Epoch: 1, Term: s.term}
	if rapid.IntRange(0, 3).Draw(t, "wrong") == 0 {
		by = "stranger"
	}
	if by == "stranger" && m.x.copies[copyKey{s.id, stage}] == nil {
		return // nothing tells a stranger from the owner of a session that is not known
	}
	m.x.Close(by, s.id, stage.Layers.Lo, fence)
	for _, at := range modelStages() {
		if at.Layers.Lo != stage.Layers.Lo {
			continue
		}
		left := m.x.copies[copyKey{s.id, at}]
		if by == s.owner && left != nil {
			t.Fatalf("%s has a copy of %v after its end", s.id, at.Layers)
		}
		if left == nil {
			delete(m.streams, copyKey{s.id, at})
		}
	}
	if by == s.owner {
		s.term++ // what comes now is of a term that the close does not cover
	}
}

func (m *model) pass(t *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(0, 6000).Draw(t, "ms")) * time.Millisecond)
	if rapid.Bool().Draw(t, "renewed") {
		s := rapid.SampledFrom(m.talkers).Draw(t, "session")
		m.x.Renew(m.now, s.owner, []kevlard.SessionID{s.id})
	}
	m.x.Expire(m.now)
	if d := m.x.Deadline(); d <= m.now {
		t.Fatalf("deadline %d at %d", d, m.now)
	}
}

func (m *model) ownerGone(t *rapid.T) {
	owner := rapid.SampledFrom([]kevlard.NodeID{"o0", "o1"}).Draw(t, "owner")
	dead := rapid.IntRange(0, 3).Draw(t, "dead") == 0
	m.x.OwnerGone(owner, kevlard.BootID(owner+".1"), dead)
	for _, s := range m.talkers {
		for _, stage := range modelStages() {
			if dead && s.owner == owner && m.x.copies[copyKey{s.id, stage}] != nil {
				t.Fatalf("%s has a copy, and its owner is dead", s.id)
			}
		}
	}
}

func (m *model) shrink(t *rapid.T) {
	m.limit, m.shrunk = int64(rapid.IntRange(0, 40).Draw(t, "blocks")*m.size*cellBytes), true
	for _, a := range m.x.Shrink(m.limit) {
		m.answer(t, copyKey{a.Message.Session, a.Message.Stage}, a)
	}
	if u := m.x.Usage(); u.Bytes > m.limit && (u.Copies > 0 || u.CachedBytes > 0) {
		t.Fatalf("%d bytes are used of %d, and not all by pins: %+v", u.Bytes, m.limit, u)
	}
}

// TestModel compares the index with a memory in which every position is written
// down, under everything that peers and the shell could do.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		t.Repeat(map[string]func(*rapid.T){
			"": m.check, "offer": m.offer, "offer again": m.offer, "diverge": m.diverge, "piece": m.piece, "piece again": m.piece, "piece once more": m.piece, "store": m.store, "store again": m.store,
			"keep": m.keep, "touch": m.touch,
			"pin": m.pin, "unpin": m.unpin, "rot": m.rot, "close": m.close, "pass": m.pass, "owner gone": m.ownerGone, "shrink": m.shrink,
		})
		for len(m.loads) > 0 {
			m.unpin(t)
		}
		for len(m.pieces) > 0 {
			m.store(t)
		}
		m.check(t)
		m.now = m.now.Add(time.Hour)
		m.x.Expire(m.now)
		m.check(t)
		if u := m.x.Usage(); u.Copies != 0 || u.Pins != 0 || u.Bytes != u.CachedBytes {
			t.Fatalf("at the end %+v", u)
		}
		m.x.Shrink(0)
		m.check(t)
		if u := m.x.Usage(); u.Bytes != 0 {
			t.Fatalf("after shrinking to nothing %+v", u)
		}
	})
}
