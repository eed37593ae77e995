package kvstream

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
)

// Store is block memory: for each stage slots of BlockTokens positions, numbered
// from 0. The memory is outside of the Go heap. Which slots are in use is the
// index's business; a slot that was never written, or was given back, has no
// position with a right sum.
//
// Its methods may be called by any goroutine; a call on a stage waits for those
// that write the same stage.
type Store struct {
	blockTokens int
	bytes       int64

	mu     sync.Mutex
	arenas map[kevlard.StageKey]*arena // one for each stage that ever had rows here
	closed bool
}

// NewStore returns a store without memory. A stage gets at most bytes.
func NewStore(blockTokens int, bytes int64) *Store {
	if blockTokens < 1 || bytes < 1 {
		panic(fmt.Sprintf("kvstream: a store of %d bytes in blocks of %d positions", bytes, blockTokens))
	}
	return &Store{blockTokens: blockTokens, bytes: bytes, arenas: map[kevlard.StageKey]*arena{}}
}

// errClosed is what Put fails with after Close.
var errClosed = errors.New("the block store is closed")

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
	a, err := s.arena(stage, layout)
	if err != nil {
		return err
	}
	return a.put(runs, sums, body)
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

// arena returns the memory of a stage. One whose cells have another size now starts
// anew: nothing of it is in use (index.Offer).
func (s *Store) arena(stage kevlard.StageKey, layout Layout) (*arena, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	a := s.arenas[stage]
	if a != nil && a.layout != layout {
		if err := a.close(); err != nil {
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

// Get gathers the positions of runs into dst, as an engine writes them, and checks
// the sum of each. dst has room for all of them. It returns the sums of the leading
// ones that are whole: dst[:len(sums)*cellBytes] holds those then. With damaged, the
// next one is not.
func (s *Store) Get(stage kevlard.StageKey, cellBytes int, runs []index.Run, dst []byte) (sums []uint64, damaged bool) {
	n := 0
	s.mu.Lock()
	a := s.arenas[stage]
	s.mu.Unlock()
	for _, r := range runs {
		n += r.N
	}
	s.check(runs, n)
	if len(dst) < n*cellBytes {
		panic(fmt.Sprintf("kvstream: %d bytes for %d positions of %d", len(dst), n, cellBytes))
	}
	if a == nil || a.layout.CellBytes() != cellBytes {
		return nil, n > 0
	}
	return a.get(runs, n, dst)
}

// Release gives the pages of slots back to the system, as far as they are wholly
// inside. What was in them is gone.
func (s *Store) Release(stage kevlard.StageKey, slots ...int) error {
	s.mu.Lock()
	a := s.arenas[stage]
	s.mu.Unlock()
	if a == nil {
		return nil
	}
	if err := a.release(slots); err != nil {
		return fmt.Errorf("give back block memory of layers %v: %w", stage.Layers, err)
	}
	return nil
}

// Bytes returns the memory that was taken from the system, touched or not.
func (s *Store) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var n int64
	for _, a := range s.arenas {
		n += a.bytes()
	}
	return n
}

// Close gives all memory back. Gets find nothing after it, and Puts fail.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var errs []error
	for _, k := range slices.SortedFunc(maps.Keys(s.arenas), kevlard.StageKey.Compare) {
		errs = append(errs, s.arenas[k].close())
	}
	clear(s.arenas)
	return errors.Join(errs...)
}

// arena is the slots of one stage.
type arena struct {
	layout      Layout
	blockTokens int
	slotBytes   int
	perChunk    int // slots of one chunk

	mu     sync.RWMutex
	most   int     // slots that may ever be
	chunks []chunk // grown as slots are first written
}

// chunk is a piece of memory that holds perChunk slots.
type chunk struct {
	mem  []byte
	sums []uint64 // of the positions of its slots
}

func newArena(layout Layout, blockTokens int, bytes int64) *arena {
	size := layout.CellBytes() * blockTokens
	most := int(bytes / int64(size))
	return &arena{
		layout: layout, blockTokens: blockTokens, slotBytes: size, perChunk: max(1, min(chunkBytes/size, most)), most: most,
	}
}

// slot returns the bytes and sums of a slot; mu is held.
func (a *arena) slot(i int) (mem []byte, sums []uint64, ok bool) {
	if i/a.perChunk >= len(a.chunks) {
		return nil, nil, false
	}
	c := a.chunks[i/a.perChunk]
	i %= a.perChunk
	return c.mem[i*a.slotBytes : (i+1)*a.slotBytes], c.sums[i*a.blockTokens : (i+1)*a.blockTokens], true
}

// grow makes sure that slot i exists; mu is held.
func (a *arena) grow(i int) error {
	if i >= a.most {
		return fmt.Errorf("slot %d: the store has room for %d slots of %d bytes", i, a.most, a.slotBytes)
	}
	for i/a.perChunk >= len(a.chunks) {
		size := a.perChunk * a.slotBytes
		mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			return fmt.Errorf("take %d bytes of memory: %w: lower [kv] ram_bytes", size, err)
		}
		a.chunks = append(a.chunks, chunk{mem, make([]uint64, a.perChunk*a.blockTokens)})
	}
	return nil
}

func (a *arena) put(runs []index.Run, sums []uint64, body []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range runs {
		if err := a.grow(r.Slot); err != nil {
			a.forget(runs)
			return err
		}
	}
	n, row := len(sums), a.layout.Row
	for _, r := range runs {
		mem, kept, _ := a.slot(r.Slot)
		at := n - len(sums)
		for run := range a.layout.Runs {
			copy(mem[(run*a.blockTokens+r.At)*row:][:r.N*row], body[(run*n+at)*row:])
		}
		copy(kept[r.At:r.At+r.N], sums)
		sums = sums[r.N:]
	}
	return nil
}

// forget spoils the sums of positions: what they held before must not be taken for
// what was to replace it. mu is held.
func (a *arena) forget(runs []index.Run) {
	for _, r := range runs {
		if _, sums, ok := a.slot(r.Slot); ok {
			clear(sums[r.At : r.At+r.N])
		}
	}
}

func (a *arena) get(runs []index.Run, n int, dst []byte) (sums []uint64, damaged bool) {
	row := a.layout.Row
	sums = make([]uint64, 0, n)
	a.mu.RLock()
	for _, r := range runs {
		mem, kept, ok := a.slot(r.Slot)
		if !ok {
			break
		}
		for run := range a.layout.Runs {
			copy(dst[(run*n+len(sums))*row:][:r.N*row], mem[(run*a.blockTokens+r.At)*row:])
		}
		sums = append(sums, kept[r.At:r.At+r.N]...)
	}
	a.mu.RUnlock()
	whole := a.layout.Whole(dst, n, sums)
	if whole == n {
		return sums, false
	}
	for run := range a.layout.Runs { // the rows of each run move together
		copy(dst[run*whole*row:], dst[run*n*row:][:whole*row])
	}
	return sums[:whole], true
}

func (a *arena) release(slots []int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	page := unix.Getpagesize()
	for _, i := range slots {
		_, sums, ok := a.slot(i)
		if !ok {
			continue
		}
		clear(sums)
		lo := i % a.perChunk * a.slotBytes
		hi := (lo + a.slotBytes) / page * page
		if lo = (lo + page - 1) / page * page; lo >= hi {
			continue
		}
		if err := unix.Madvise(a.chunks[i/a.perChunk].mem[lo:hi], unix.MADV_DONTNEED); err != nil {
			return fmt.Errorf("slot %d: %w", i, err)
		}
	}
	return nil
}

func (a *arena) bytes() int64 {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return int64(len(a.chunks)) * int64(a.perChunk*a.slotBytes)
}

func (a *arena) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, c := range a.chunks {
		if err := unix.Munmap(c.mem); err != nil {
			errs = append(errs, fmt.Errorf("give back %d bytes of block memory: %w", len(c.mem), err))
		}
	}
	a.chunks, a.most = nil, 0 // whoever still has it finds nothing and gets no more
	return errors.Join(errs...)
}
