package sim

import (
	"encoding/binary"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/protocol"
)

// rows is a piece of KV with its bytes: for each layer those of all positions.
type rows struct {
	header protocol.Rows
	body   []byte
	stored bool // sent from memory to who takes the stage over
}

// positions returns the bytes of all n positions of a body, one after the other.
func positions(body []byte, n int) []byte {
	out := make([]byte, 0, len(body))
	for i := range n {
		for at := 8 * i; at < len(body); at += 8 * n {
			out = append(out, body[at:at+8]...)
		}
	}
	return out
}

// sums returns the checksum of each of n positions.
func sums(body []byte, n int) []uint64 {
	out := make([]uint64, n)
	values, width := positions(body, n), len(body)/max(1, n)
	for i := range n {
		out[i] = sum(values[i*width : (i+1)*width])
	}
	return out
}

// sum is the checksum of one position.
func sum(values []byte) uint64 {
	h := uint64(0xcbf29ce484222325)
	for ; len(values) >= 8; values = values[8:] {
		h = (h ^ binary.LittleEndian.Uint64(values)) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return h
}

// stored is one position of block memory. The zero value holds nothing that
// anybody wrote.
type stored struct {
	values []byte
	sum    uint64
	rotten bool   // a fault has damaged it
	salt   string // of the session that it was stored for
}

func (s stored) intact() bool { return s.values != nil && sum(s.values) == s.sum }

// memory is the block memory of one host. It dies with the daemon.
type memory struct {
	blockTokens int
	slots       map[kevlard.StageKey]map[int][]stored
	held        map[kevlard.StageKey]map[uint64]int // how often each content is somewhere, by its sum
	rotted      map[content]bool                    // what a fault took
	damaged     bool                                // a fault was here
}

// content names the KV of one position: equal contents are equal KV.
type content struct {
	stage kevlard.StageKey
	sum   uint64
}

func newMemory(blockTokens int) *memory {
	return &memory{blockTokens: blockTokens, slots: map[kevlard.StageKey]map[int][]stored{}, held: map[kevlard.StageKey]map[uint64]int{}, rotted: map[content]bool{}}
}

// at returns what stands at a place, for reading and writing.
func (m *memory) at(stage kevlard.StageKey, slot, at int) *stored {
	slots := m.slots[stage]
	if slots == nil {
		slots = map[int][]stored{}
		m.slots[stage] = slots
	}
	if slots[slot] == nil {
		slots[slot] = make([]stored, m.blockTokens)
	}
	return &slots[slot][at]
}

// put writes a piece to its places.
func (m *memory) put(stage kevlard.StageKey, to []index.Run, r rows, salt string) {
	n, i := len(r.header.Tokens), 0
	values, width := positions(r.body, n), len(r.body)/max(1, n)
	if m.held[stage] == nil {
		m.held[stage] = map[uint64]int{}
	}
	held := m.held[stage]
	for _, run := range to {
		for k := range run.N {
			s := m.at(stage, run.Slot, run.At+k)
			m.forget(stage, s)
			*s = stored{values: values[i*width : (i+1)*width : (i+1)*width], sum: r.header.Sums[i], salt: salt}
			held[s.sum]++
			i++
		}
	}
}

// free takes what stands in slots.
func (m *memory) free(stage kevlard.StageKey, slots []int) {
	for _, slot := range slots {
		for i := range m.slots[stage][slot] {
			m.forget(stage, &m.slots[stage][slot][i])
		}
		delete(m.slots[stage], slot)
	}
}

// read returns what stands in runs of positions.
func (m *memory) read(stage kevlard.StageKey, from []index.Run) []stored {
	out := make([]stored, 0, length(from))
	for _, run := range from {
		for k := range run.N {
			out = append(out, *m.at(stage, run.Slot, run.At+k))
		}
	}
	return out
}

func (m *memory) forget(stage kevlard.StageKey, s *stored) {
	if s.values == nil || s.rotten {
		return
	}
	held := m.held[stage]
	if held[s.sum]--; held[s.sum] == 0 {
		delete(held, s.sum)
	}
}

// rot flips a bit of one stored position.
func (m *memory) rot(stage kevlard.StageKey, s *stored, bit int) {
	m.forget(stage, s)
	if !s.rotten {
		m.rotted[content{stage, s.sum}] = true
	}
	s.values[bit/8%len(s.values)] ^= 1 << (bit % 8)
	s.rotten, m.damaged = !s.intact(), true
	if !s.rotten { // the same bit twice
		m.held[stage][s.sum]++
	}
}

// has reports whether a content is somewhere, or was until a fault took it.
func (m *memory) has(c content) bool { return m.held[c.stage][c.sum] > 0 || m.rotted[c] }
