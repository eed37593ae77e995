package kvstream

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kevlard/kevlard/kvstream/index"
)

// arena is the slots of one stage. The Store's lock guards what says so; mu guards
// the bytes and sums.
type arena struct {
	layout      Layout
	blockTokens int
	slotBytes   int
	perChunk    int // slots of one chunk

	// Guarded by the Store.
	slots []slot
	live  int // slots in use

	mu     sync.RWMutex
	most   int     // slots that may ever be
	chunks []chunk // grown as slots are first written
}

// slot is what the Store knows of one.
type slot struct {
	used   bool // holds positions
	memory bool // has memory
	spare  bool // is in Store.spare
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

// use makes slot i exist and in use. It reports whether that takes memory that it had
// not.
func (a *arena) use(i int) (grows bool, err error) {
	if err := a.grow(i); err != nil {
		return false, err
	}
	for i >= len(a.slots) {
		a.slots = append(a.slots, slot{})
	}
	s := &a.slots[i]
	if !s.used {
		a.live++
	}
	grows = !s.memory
	s.used, s.memory = true, true
	return grows, nil
}

// grow makes sure that there are addresses for slot i.
func (a *arena) grow(i int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
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

// free ends the use of slot i, and reports whether it is to enter Store.spare.
func (a *arena) free(i int) bool {
	if i < 0 || i >= len(a.slots) || !a.slots[i].used {
		return false
	}
	s := &a.slots[i]
	s.used = false
	a.live--
	a.mu.Lock()
	_, sums, _ := a.at(i)
	clear(sums)
	a.mu.Unlock()
	enter := !s.spare
	s.spare = true
	return enter
}

// reclaim gives the memory of a spare slot back, unless it is in use again, and
// returns how much that was.
func (a *arena) reclaim(i int) (int64, error) {
	s := &a.slots[i]
	s.spare = false
	if s.used || !s.memory {
		return 0, nil
	}
	s.memory = false
	page := unix.Getpagesize()
	lo := i % a.perChunk * a.slotBytes
	hi := (lo + a.slotBytes) / page * page // whole pages: the others are the neighbours' too
	if lo = (lo + page - 1) / page * page; lo < hi {
		a.mu.Lock()
		defer a.mu.Unlock()
		if err := unix.Madvise(a.chunks[i/a.perChunk].mem[lo:hi], unix.MADV_DONTNEED); err != nil {
			return int64(a.slotBytes), fmt.Errorf("give back the memory of slot %d: %w", i, err)
		}
	}
	return int64(a.slotBytes), nil
}

// at returns the bytes and sums of a slot; mu is held.
func (a *arena) at(i int) (mem []byte, sums []uint64, ok bool) {
	if i/a.perChunk >= len(a.chunks) {
		return nil, nil, false
	}
	c := a.chunks[i/a.perChunk]
	i %= a.perChunk
	return c.mem[i*a.slotBytes : (i+1)*a.slotBytes], c.sums[i*a.blockTokens : (i+1)*a.blockTokens], true
}

// put writes positions to slots that are in use.
func (a *arena) put(runs []index.Run, sums []uint64, body []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, row := len(sums), a.layout.Row
	for _, r := range runs {
		mem, kept, ok := a.at(r.Slot)
		if !ok {
			return // the arena was closed
		}
		at := n - len(sums)
		for run := range a.layout.Runs {
			copy(mem[(run*a.blockTokens+r.At)*row:][:r.N*row], body[(run*n+at)*row:])
		}
		copy(kept[r.At:r.At+r.N], sums)
		sums = sums[r.N:]
	}
}

// spoil takes the sums of positions: what was there before must not be taken for what
// was to replace it.
func (a *arena) spoil(runs []index.Run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range runs {
		if _, sums, ok := a.at(r.Slot); ok {
			clear(sums[r.At : r.At+r.N])
		}
	}
}

func (a *arena) get(runs []index.Run, n int, dst []byte) (sums []uint64, damaged bool) {
	row := a.layout.Row
	sums = make([]uint64, 0, n)
	a.mu.RLock()
	for _, r := range runs {
		mem, kept, ok := a.at(r.Slot)
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

// close gives all memory back and returns how much the slots had.
func (a *arena) close() (n int64, err error) {
	for i := range a.slots {
		if a.slots[i].memory {
			n += int64(a.slotBytes)
		}
	}
	a.slots, a.live = nil, 0
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, c := range a.chunks {
		if err := unix.Munmap(c.mem); err != nil {
			errs = append(errs, fmt.Errorf("give back %d bytes of block memory: %w", len(c.mem), err))
		}
	}
	a.chunks, a.most = nil, 0 // whoever still has it finds nothing and gets no more
	return n, errors.Join(errs...)
}
