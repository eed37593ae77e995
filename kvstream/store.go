package kvstream

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
)

// Store is block memory: for each stage slots of BlockTokens positions, numbered
// from 0. The memory is outside of the Go heap. Which slots are in use is the
// index's business; a slot that was never written, or was freed, has no position with
// a right sum.
//
// Memory is taken from the system when a slot is first written. That of freed slots
// stays for the next to come, of this stage or, when the bytes run out, of another; a
// stage of which nothing is left is forgotten.
//
// Its methods may be called by any goroutine; a Get waits for a Put to the same
// stage.
type Store struct {
	blockTokens int
	bytes       int64

	mu       sync.Mutex
	arenas   map[kevlard.StageKey]*arena // those with slots in use
	resident int64                       // bytes of the slots that have memory
	spare    []place                     // freed slots that may still have memory, the oldest first
	closed   bool
}

// place is one slot of an arena.
type place struct {
	arena *arena
	slot  int
}

// NewStore returns a store of at most so many bytes.
func NewStore(blockTokens int, bytes int64) *Store {
	if blockTokens < 1 || bytes < 1 {
		panic(fmt.Sprintf("kvstream: a store of %d bytes in blocks of %d positions", bytes, blockTokens))
	}
	return &Store{blockTokens: blockTokens, bytes: bytes, arenas: map[kevlard.StageKey]*arena{}}
}

// Errors of Put.
var (
	errClosed = errors.New("the block store is closed")
	errFull   = errors.New("the block memory is in use: the index must bound what is stored")
)

// Put scatters a piece of KV into the slots of runs, with the sum of each position.
// The body holds len(sums) positions, run by run. An error says that nothing was
// kept, and that none of these positions has a right sum now.
func (s *Store) Put(stage kevlard.StageKey, cellBytes int, runs []index.Run, sums []uint64, body []byte) error {
	if err := s.put(stage, cellBytes, runs, sums, body); err != nil {
		return fmt.Errorf("store %d positions of layers %v: %w", len(sums), stage.Layers, err)
	}
	return nil
}

func (s *Store) put(stage kevlard.StageKey, cellBytes int, runs []index.Run, sums []uint64, body []byte) error {
	layout, err := LayoutOf(stage.Layers, cellBytes)
	if err != nil {
		return err
	}
	if len(body) != len(sums)*cellBytes {
		panic(fmt.Sprintf("kvstream: a body of %d bytes for %d positions of %d", len(body), len(sums), cellBytes))
	}
	s.check(runs, len(sums))
	s.mu.Lock()
	a, err := s.arena(stage, layout)
	if err == nil {
		err = s.take(a, runs)
	}
	s.mu.Unlock()
	if err != nil {
		if a != nil {
			a.spoil(runs)
		}
		return err
	}
	a.put(runs, sums, body)
	return nil
}

// check makes sure that runs lie in slots and have so many positions together.
func (s *Store) check(runs []index.Run, n int) {
	for _, r := range runs {
		if r.Slot < 0 || r.At < 0 || r.N < 1 || r.At+r.N > s.blockTokens {
			panic(fmt.Sprintf("kvstream: run %+v in slots of %d positions", r, s.blockTokens))
		}
		n -= r.N
	}
	if n != 0 {
		panic(fmt.Sprintf("kvstream: %d positions more than runs have", n))
	}
}

// arena returns the memory of a stage; mu is held. One whose cells have another size
// now starts anew: nothing of it is in use (index.Offer).
func (s *Store) arena(stage kevlard.StageKey, layout Layout) (*arena, error) {
	if s.closed {
		return nil, errClosed
	}
	a := s.arenas[stage]
	if a != nil && a.layout != layout {
		if err := s.drop(stage); err != nil {
			return nil, err
		}
		a = nil
	}
	if a == nil {
		a = newArena(layout, s.blockTokens, s.bytes)
		s.arenas[stage] = a
	}
	return a, nil
}

// take gives the slots of runs memory, from spare slots if need be; mu is held.
func (s *Store) take(a *arena, runs []index.Run) error {
	for _, r := range runs {
		grows, err := a.use(r.Slot)
		if err != nil {
			return err
		}
		if !grows {
			continue
		}
		s.resident += int64(a.slotBytes)
		for s.resident > s.bytes {
			if len(s.spare) == 0 {
				return errFull
			}
			p := s.spare[0]
			s.spare = s.spare[1:]
			n, err := p.arena.reclaim(p.slot)
			s.resident -= n
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Get gathers the positions of runs into dst, as an engine writes them, and checks
// the sum of each. dst has room for all of them. It returns the sums of the leading
// ones that are whole: dst[:len(sums)*cellBytes] holds those then. With damaged, the
// next one is not.
func (s *Store) Get(stage kevlard.StageKey, cellBytes int, runs []index.Run, dst []byte) (sums []uint64, damaged bool) {
	n := 0
	for _, r := range runs {
		n += r.N
	}
	s.check(runs, n)
	if len(dst) < n*cellBytes {
		panic(fmt.Sprintf("kvstream: %d bytes for %d positions of %d", len(dst), n, cellBytes))
	}
	s.mu.Lock()
	a := s.arenas[stage]
	s.mu.Unlock()
	if a == nil || a.layout.CellBytes() != cellBytes {
		return nil, n > 0
	}
	return a.get(runs, n, dst)
}

// Free says that slots hold nothing any more. What was in them is gone.
func (s *Store) Free(stage kevlard.StageKey, slots ...int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.arenas[stage]
	if a == nil {
		return nil
	}
	for _, i := range slots {
		if a.free(i) {
			s.spare = append(s.spare, place{a, i})
		}
	}
	if a.live > 0 {
		return nil
	}
	if err := s.drop(stage); err != nil {
		return fmt.Errorf("free the block memory of layers %v: %w", stage.Layers, err)
	}
	return nil
}

// drop gives all memory of a stage back; mu is held.
func (s *Store) drop(stage kevlard.StageKey) error {
	a := s.arenas[stage]
	delete(s.arenas, stage)
	s.spare = slices.DeleteFunc(s.spare, func(p place) bool { return p.arena == a })
	n, err := a.close()
	s.resident -= n
	return err
}

// Bytes returns the memory of all slots that have some.
func (s *Store) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resident
}

// Close gives all memory back. Gets find nothing after it, and Puts fail.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var errs []error
	for _, k := range slices.SortedFunc(maps.Keys(s.arenas), kevlard.StageKey.Compare) {
		errs = append(errs, s.drop(k))
	}
	return errors.Join(errs...)
}
