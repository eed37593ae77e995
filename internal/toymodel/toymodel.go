// Package toymodel is a language model for tests: a hash of everything that a
// real model depends on. It keeps KV cells like a real stage does, so that a
// token that is lost, doubled, stale or out of place, a row with a flipped bit
// or a history that is not the session's changes every token after it. It is
// deterministic on every CPU, pure, and the same for the simulator and for the
// daemon's tests.
//
// The function: a token becomes a 64-bit hidden state; each layer writes
// mix(state, layer, position) into the position's KV cell and adds the sum of
// the session's cells up to and including it to the state; the state after the
// last layer, the history and the sampling parameters choose the next token, and
// the state and the history its log probabilities, which are no probabilities but
// as telling.
// Sums do not depend on order, so the results are the same bits whatever the
// batch company, the chunking and the number of stages.
package toymodel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/stage"
)

// Model is the shape of a toy model. Models of equal Layers and Vocab choose
// equal tokens; Width only pads the rows.
type Model struct {
	Layers int // at least 1
	Vocab  int // at least 1; tokens are in [0,Vocab)
	Width  int // bytes of one row of hidden state, a multiple of 8, at least 8
	// Weights makes stages compute as if they had those of another model; 0 are the right ones.
	Weights uint64
}

// Validate names every field that is out of range.
func (m Model) Validate() error {
	var errs []error
	if m.Layers < 1 {
		errs = append(errs, fmt.Errorf("toy model: layers is %d, want at least 1", m.Layers))
	}
	if m.Vocab < 1 || m.Vocab > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("toy model: vocab is %d, want 1 to %d", m.Vocab, math.MaxInt32))
	}
	if m.Width < 8 || m.Width%8 != 0 {
		errs = append(errs, fmt.Errorf("toy model: width is %d bytes, want a multiple of 8, at least 8", m.Width))
	}
	return errors.Join(errs...)
}

// Stage computes the layers [lo,hi) of a model and holds their KV. It is not
// safe for concurrent use.
type Stage struct {
	model  Model
	layers kevlard.Layers
	cells  int
	kv     [][]uint64 // [layer-lo][cell], as far as cells were touched
}

// NewStage returns a stage with room for the given number of KV cells, each
// filled with garbage so that reading a cell never written shows.
func NewStage(m Model, l kevlard.Layers, cells int) (*Stage, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if l.Lo < 0 || l.Hi <= l.Lo || l.Hi > m.Layers {
		return nil, fmt.Errorf("toy stage: layers %v, want a range within [0,%d)", l, m.Layers)
	}
	if cells < 1 {
		return nil, fmt.Errorf("toy stage: %d cells, want at least 1", cells)
	}
	return &Stage{model: m, layers: l, cells: cells, kv: make([][]uint64, l.Len())}, nil
}

// touch fills the cells up to n with garbage, as far as that was not done before.
func (s *Stage) touch(n int) {
	for i := range s.kv {
		for c := len(s.kv[i]); c < n; c++ {
			s.kv[i] = append(s.kv[i], mix(0xdead, uint64(i), uint64(c)))
		}
	}
}

// Forward computes one batch. rows has one entry for each part, of
// len(Tokens) x Width bytes (nil entries at the last stage); sampled has one
// entry for each part that samples, in order. A batch that a real engine would
// reject (cells out of range, rows of the wrong size, a token outside the
// vocabulary) is an error and leaves the cells as they were.
func (s *Stage) Forward(b stage.Batch) (rows [][]byte, sampled []kevlard.Sampled, err error) {
	for i, p := range b.Parts {
		if err := s.check(p); err != nil {
			return nil, nil, fmt.Errorf("batch %d: part %d: %w", b.ID, i, err)
		}
	}
	last := s.layers.Hi == s.model.Layers
	rows = make([][]byte, len(b.Parts))
	for i, p := range b.Parts {
		s.touch(p.Cell + p.Pos + len(p.Tokens))
		states := s.states(p)
		for layer := range s.kv {
			s.attend(layer, p, states)
		}
		switch {
		case !last:
			rows[i] = s.model.encode(states)
		case p.Sample:
			sampled = append(sampled, s.model.choose(states[len(states)-1], p.History, p.Sampling))
		}
	}
	return rows, sampled, nil
}

// CellBytes is the bytes of one cell as Read and Write carry it.
func (s *Stage) CellBytes() int { return 8 * len(s.kv) }

// Read copies n cells from cell on to dst, which holds n x CellBytes: for each layer
// n values, little-endian.
func (s *Stage) Read(cell, n int, dst []byte) error {
	if err := s.checkCells(cell, n, dst); err != nil {
		return fmt.Errorf("read toy cells: %w", err)
	}
	s.touch(cell + n)
	for i, kv := range s.kv {
		for j, v := range kv[cell : cell+n] {
			binary.LittleEndian.PutUint64(dst[8*(i*n+j):], v)
		}
	}
	return nil
}

// Write is the inverse of Read.
func (s *Stage) Write(cell, n int, src []byte) error {
	if err := s.checkCells(cell, n, src); err != nil {
		return fmt.Errorf("write toy cells: %w", err)
	}
	s.touch(cell + n)
	for i, kv := range s.kv {
		for j := range n {
			kv[cell+j] = binary.LittleEndian.Uint64(src[8*(i*n+j):])
		}
	}
	return nil
}

func (s *Stage) checkCells(cell, n int, buf []byte) error {
	if cell < 0 || n < 0 || n > s.cells || cell > s.cells-n || len(buf) != n*s.CellBytes() {
		return fmt.Errorf("cells %d to %d and %d bytes, there are %d of %d bytes", cell, cell+n, len(buf), s.cells, s.CellBytes())
	}
	return nil
}

func (s *Stage) check(p stage.Part) error {
	n := len(p.Tokens)
	switch {
	case n == 0:
		return errors.New("no tokens")
	case p.Cell < 0 || p.Pos < 0 || p.Cell+p.Pos+n > s.cells:
		return fmt.Errorf("cells %d+%d to %d, there are %d", p.Cell, p.Pos, p.Cell+p.Pos+n, s.cells)
	case s.layers.Lo > 0 && len(p.Rows) != n*s.model.Width:
		return fmt.Errorf("%d bytes of rows for %d tokens, want %d", len(p.Rows), n, n*s.model.Width)
	case p.Sample && s.layers.Hi == s.model.Layers && len(p.History) != p.Pos+n:
		return fmt.Errorf("a history of %d tokens at position %d, want %d", len(p.History), p.Pos, p.Pos+n)
	}
	for _, t := range p.Tokens {
		if t < 0 || int(t) >= s.model.Vocab {
			return fmt.Errorf("token %d, the vocabulary has %d", t, s.model.Vocab)
		}
	}
	return nil
}

// states returns the hidden states that enter this stage.
func (s *Stage) states(p stage.Part) []uint64 {
	states := make([]uint64, len(p.Tokens))
	for i, t := range p.Tokens {
		if s.layers.Lo == 0 {
			states[i] = embed(t)
		} else {
			states[i] = decodeRow(p.Rows[i*s.model.Width : (i+1)*s.model.Width])
		}
	}
	return states
}

// attend moves the states of a part through one layer.
func (s *Stage) attend(layer int, p stage.Part, states []uint64) {
	cells := s.kv[layer][p.Cell:]
	n := uint64(s.layers.Lo + layer)
	var sum uint64
	for _, v := range cells[:p.Pos] {
		sum += v
	}
	for i, h := range states {
		pos := p.Pos + i
		cells[pos] = mix(h, n, uint64(pos))
		sum += cells[pos]
		states[i] = mix(h, sum, n) ^ s.model.Weights
	}
}

// choose picks the token that follows history.
func (m Model) choose(h uint64, history []kevlard.Token, s kevlard.Sampling) (out kevlard.Sampled) {
	for i, t := range history {
		h = mix(h, uint64(i), uint64(t))
	}
	if s.Logprobs {
		out.Logprobs = m.logprobs(h, s.TopLogprobs)
	}
	if s.Temperature > 0 {
		h = mix(h, s.Seed, uint64(math.Float32bits(s.Temperature)))
	}
	out.Token = kevlard.Token(mix(h, 0x70, uint64(len(history))) % uint64(m.Vocab))
	return out
}

// logprobs makes up falling values for top tokens that follow one another in the
// vocabulary.
func (m Model) logprobs(h uint64, top int) *kevlard.Logprobs {
	l := &kevlard.Logprobs{Chosen: -float32(mix(h, 0x71, 0)%4096) / 256}
	first, v := mix(h, 0x72, 0), float32(0)
	for i := range uint64(min(top, m.Vocab)) {
		v -= float32(mix(h, 0x73, i)%256+1) / 256
		l.Top = append(l.Top, kevlard.TokenLogprob{Token: kevlard.Token((first%uint64(m.Vocab) + i) % uint64(m.Vocab)), Logprob: v})
	}
	return l
}

// encode writes the states as rows: the state, then words that follow from it.
func (m Model) encode(states []uint64) []byte {
	out := make([]byte, 0, len(states)*m.Width)
	for _, h := range states {
		out = binary.LittleEndian.AppendUint64(out, h)
		for w := 1; w < m.Width/8; w++ {
			out = binary.LittleEndian.AppendUint64(out, mix(h, uint64(w), 0x12))
		}
	}
	return out
}

// decodeRow is the inverse of encode for one row. Padding that does not follow
// from the state spoils the state, so that damage anywhere in a row shows.
func decodeRow(row []byte) uint64 {
	h := binary.LittleEndian.Uint64(row)
	spoilt := h
	for w := 1; w < len(row)/8; w++ {
		if got := binary.LittleEndian.Uint64(row[8*w:]); got != mix(h, uint64(w), 0x12) {
			spoilt = mix(spoilt, got, uint64(w))
		}
	}
	return spoilt
}

func embed(t kevlard.Token) uint64 { return mix(uint64(t), 0xe3, 0) }

// mix hashes three words into one (the finaliser of SplitMix64, chained).
func mix(a, b, c uint64) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for _, v := range [...]uint64{a, b, c} {
		h = (h ^ v) + 0x9e3779b97f4a7c15
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
	}
	return h
}
