package kvstream

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
)

// stageOf is a stage of so many layers.
func stageOf(layers int) kevlard.StageKey {
	return kevlard.StageKey{Model: kevlard.Digest{1}, Layers: kevlard.Layers{Lo: 2, Hi: 2 + layers}}
}

// cells are positions, each as the rows of one cell, one after the other.
type cells [][]byte

// body lays cells out run by run, in the most obvious way.
func (c cells) body(l Layout) []byte {
	var out []byte
	for r := range l.Runs {
		for _, cell := range c {
			out = append(out, cell[r*l.Row:(r+1)*l.Row]...)
		}
	}
	return out
}

func (c cells) sums() []uint64 {
	var out []uint64
	for _, cell := range c {
		out = append(out, xxh3.Hash(cell))
	}
	return out
}

// someCells returns n cells that differ in every row.
func someCells(l Layout, n int, seed uint64) cells {
	out := make(cells, n)
	for i := range out {
		for j := 0; len(out[i]) < l.CellBytes(); j++ {
			out[i] = binary.LittleEndian.AppendUint64(out[i], xxh3.HashString("cell")^seed+uint64(i)<<32+uint64(j)*0x9e3779b97f4a7c15)
		}
		out[i] = out[i][:l.CellBytes()]
	}
	return out
}

func newStore(t interface {
	Fatal(...any)
	Cleanup(func())
}, blockTokens int, limit int64,
) *Store {
	s := NewStore(blockTokens, limit)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if n := s.Bytes(); n != 0 {
			t.Fatal("bytes left after Close: ", n)
		}
	})
	return s
}

// get is Get with a fresh buffer; it returns the cells' bytes, run by run.
func get(s *Store, stage kevlard.StageKey, l Layout, runs []index.Run) (out []byte, n int, damaged bool) {
	total := 0
	for _, r := range runs {
		total += r.N
	}
	dst := bytes.Repeat([]byte{0xee}, total*l.CellBytes())
	sums, damaged := s.Get(stage, l.CellBytes(), runs, dst)
	out = dst[:len(sums)*l.CellBytes()]
	if !slices.Equal(sums, l.Sums(nil, out, len(sums))) {
		panic("the sums are not those of the bytes")
	}
	return out, len(sums), damaged
}

// spot is a position in block memory.
type spot struct {
	stage    kevlard.StageKey
	slot, at int
}

// TestStoreAgreesWithANaiveOne puts and gets runs and frees slots at random in two
// stages, which have memory for one, and compares with a map of positions.
func TestStoreAgreesWithANaiveOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		block := rapid.IntRange(1, 9).Draw(t, "block")
		stages := []kevlard.StageKey{stageOf(1), stageOf(3)}
		layouts := map[kevlard.StageKey]Layout{}
		for _, k := range stages {
			layouts[k] = Layout{Runs: 2 * k.Layers.Len(), Row: rapid.SampledFrom([]int{1, 4, 7, 300}).Draw(t, "row")}
		}
		const slots = 12
		size := func(k kevlard.StageKey) int64 { return int64(block * layouts[k].CellBytes()) }
		limit := slots * max(size(stages[0]), size(stages[1]))
		s := newStore(t, block, limit)
		used := map[spot]bool{} // at 0
		inUse := func() (n int64) {
			for p := range used {
				n += size(p.stage)
			}
			return n
		}
		naive := map[spot][]byte{}
		runs := func() (out []index.Run, n int) {
			for _, slot := range rapid.SliceOfNDistinct(rapid.IntRange(0, slots-1), 1, 5, rapid.ID[int]).Draw(t, "slots") {
				at := rapid.IntRange(0, block-1).Draw(t, "at")
				r := index.Run{Slot: slot, At: at, N: rapid.IntRange(1, block-at).Draw(t, "n")}
				out = append(out, r)
				n += r.N
			}
			return out, n
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				k := rapid.SampledFrom(stages).Draw(t, "stage")
				l := layouts[k]
				runs, n := runs()
				c := someCells(l, n, rapid.Uint64().Draw(t, "seed"))
				more := int64(0)
				for _, r := range runs {
					if !used[spot{k, r.Slot, 0}] {
						more += size(k)
					}
				}
				if inUse()+more > limit {
					t.Skip("the index does not store what has no room")
				}
				for _, r := range runs {
					used[spot{k, r.Slot, 0}] = true
				}
				if err := s.Put(k, l.CellBytes(), runs, c.sums(), c.body(l)); err != nil {
					t.Fatal(err)
				}
				for _, r := range runs {
					for i := range r.N {
						naive[spot{k, r.Slot, r.At + i}], c = c[0], c[1:]
					}
				}
			},
			"get": func(t *rapid.T) {
				k := rapid.SampledFrom(stages).Draw(t, "stage")
				runs, n := runs()
				var want cells
				for _, r := range runs {
					for i := range r.N {
						want = append(want, naive[spot{k, r.Slot, r.At + i}])
					}
				}
				have := 0
				for have < n && want[have] != nil {
					have++
				}
				got, whole, damaged := get(s, k, layouts[k], runs)
				if whole != have || damaged != (have < n) || !bytes.Equal(got, want[:have].body(layouts[k])) {
					t.Fatalf("%d of %d positions, damaged %v, want %d; bytes equal: %v", whole, n, damaged, have, bytes.Equal(got, want[:have].body(layouts[k])))
				}
			},
			"": func(t *rapid.T) {
				if n := s.Bytes(); n < inUse() || n > limit {
					t.Fatalf("%d bytes of memory, %d in use, %d allowed", n, inUse(), limit)
				}
				if len(used) == 0 && (s.Bytes() != 0 || len(s.arenas) != 0 || len(s.spare) != 0) {
					t.Fatalf("%d bytes, %d stages and %d spare slots are left of nothing", s.Bytes(), len(s.arenas), len(s.spare))
				}
			},
			"free": func(t *rapid.T) {
				k := rapid.SampledFrom(stages).Draw(t, "stage")
				slot := rapid.IntRange(0, slots).Draw(t, "slot")
				if err := s.Free(k, slot); err != nil {
					t.Fatal(err)
				}
				delete(used, spot{k, slot, 0})
				for at := range block {
					delete(naive, spot{k, slot, at})
				}
			},
		})
	})
}

// TestDamageIsFound flips a bit of each byte of a position and each bit of its sum,
// and wants the positions before it and no other.
func TestDamageIsFound(t *testing.T) {
	k := stageOf(2)
	l := Layout{Runs: 4, Row: 8}
	s := newStore(t, 4, 1<<20)
	runs := []index.Run{{Slot: 1, At: 1, N: 3}, {Slot: 0, At: 0, N: 4}}
	c := someCells(l, 7, 1)
	if err := s.Put(k, l.CellBytes(), runs, c.sums(), c.body(l)); err != nil {
		t.Fatal(err)
	}
	a := s.arenas[k]
	expect := func(what string, want int) {
		t.Helper()
		got, n, damaged := get(s, k, l, runs)
		if n != want || damaged != (want < 7) || !bytes.Equal(got, c[:want].body(l)) {
			t.Errorf("%s: %d positions, damaged %v, want %d; bytes equal: %v", what, n, damaged, want, bytes.Equal(got, c[:want].body(l)))
		}
	}
	expect("nothing is damaged", 7)
	for i, p := range []spot{{slot: 1, at: 1}, {slot: 1, at: 2}, {slot: 1, at: 3}, {slot: 0, at: 0}, {slot: 0, at: 1}, {slot: 0, at: 2}, {slot: 0, at: 3}} {
		mem, sums, _ := a.at(p.slot)
		for run := range l.Runs {
			for b := range l.Row {
				at := (run*4+p.at)*l.Row + b
				mem[at] ^= 1 << (b % 8)
				expect("a byte of a row", i)
				mem[at] ^= 1 << (b % 8)
			}
		}
		sums[p.at] ^= 1 << 63
		expect("a sum", i)
		sums[p.at] ^= 1 << 63
	}
	expect("all is as before", 7)
}

func TestStoreRefuses(t *testing.T) {
	k := stageOf(1)
	l := Layout{Runs: 2, Row: 4}
	s := newStore(t, 4, 3*4*8) // three slots
	c := someCells(l, 2, 3)
	in := func(slot int) []index.Run { return []index.Run{{Slot: slot, At: 2, N: 2}} }
	if err := s.Put(k, 8, in(2), c.sums(), c.body(l)); err != nil {
		t.Fatal(err)
	}
	// What a failed Put was to replace is not taken for what should be there.
	both := []index.Run{{Slot: 2, At: 2, N: 1}, {Slot: 3, At: 0, N: 1}}
	if err := s.Put(k, 8, both, c.sums(), c.body(l)); err == nil || !strings.Contains(err.Error(), "slot 3") {
		t.Errorf("a slot beyond the memory: %v", err)
	}
	if _, n, damaged := get(s, k, l, in(2)); n != 0 || !damaged {
		t.Errorf("after a failed Put: %d positions, damaged %v", n, damaged)
	}
	if err := s.Put(k, 7, in(0), c.sums(), make([]byte, 14)); err == nil {
		t.Error("cells of 7 bytes in two rows were taken")
	}
	if sums, damaged := s.Get(stageOf(5), 8, in(0), make([]byte, 16)); len(sums) != 0 || !damaged {
		t.Errorf("a stage that has nothing here: %d positions, damaged %v", len(sums), damaged)
	}
	if sums, damaged := s.Get(k, 16, in(0), make([]byte, 32)); len(sums) != 0 || !damaged {
		t.Errorf("cells of another size: %d positions, damaged %v", len(sums), damaged)
	}
	for name, runs := range map[string][]index.Run{
		"too long": {{Slot: 0, At: 3, N: 2}}, "before the slot": {{Slot: 0, At: -1, N: 2}}, "no slot": {{Slot: -1, At: 0, N: 2}},
		"empty": {{Slot: 0, At: 0, N: 2}, {}}, "too few": {{Slot: 0, At: 0, N: 1}}, "too many": {{Slot: 0, At: 0, N: 3}},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			_ = s.Put(k, 8, runs, c.sums(), c.body(l))
		}()
	}
	// Cells of another size start anew.
	l = Layout{Runs: 2, Row: 5}
	c = someCells(l, 2, 4)
	if err := s.Put(k, 10, in(1), c.sums(), c.body(l)); err != nil {
		t.Fatal(err)
	}
	if got, n, _ := get(s, k, l, in(1)); n != 2 || !bytes.Equal(got, c.body(l)) {
		t.Errorf("%d positions after a new layout", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(k, 10, in(1), c.sums(), c.body(l)); err == nil {
		t.Error("Put after Close")
	}
	if _, n, damaged := get(s, k, l, in(1)); n != 0 || !damaged {
		t.Errorf("Get after Close: %d positions, damaged %v", n, damaged)
	}
}

// TestMemoryMoves frees a slot between others, and has another stage take its memory.
func TestMemoryMoves(t *testing.T) {
	k := stageOf(1)
	l := Layout{Runs: 2, Row: 3000} // slots of 24,000 bytes, which are not whole pages
	s := newStore(t, 4, 3*24000)
	c := someCells(l, 12, 5)
	slots := []index.Run{{Slot: 0, N: 4}, {Slot: 1, N: 4}, {Slot: 2, N: 4}}
	if err := s.Put(k, l.CellBytes(), slots, c.sums(), c.body(l)); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(stageOf(1), l.CellBytes(), []index.Run{{Slot: 3, N: 1}}, make([]uint64, 1), make([]byte, l.CellBytes())); err == nil {
		t.Error("a slot was stored beyond the memory")
	}
	if err := s.Free(k, 1, 99); err != nil {
		t.Fatal(err)
	}
	other := kevlard.StageKey{Model: kevlard.Digest{2}, Layers: k.Layers}
	for range 2 { // the second time it has its memory
		if err := s.Put(other, l.CellBytes(), []index.Run{{Slot: 2, N: 4}}, c[:4].sums(), c[:4].body(l)); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Bytes(); n != 3*24000 {
		t.Errorf("%d bytes of memory", n)
	}
	if got, n, _ := get(s, other, l, []index.Run{{Slot: 2, N: 4}}); n != 4 || !bytes.Equal(got, c[:4].body(l)) {
		t.Errorf("the other stage has %d positions", n)
	}
	if err := s.Put(other, l.CellBytes(), []index.Run{{Slot: 0, N: 4}}, c[:4].sums(), c[:4].body(l)); err == nil {
		t.Error("more was stored than there is memory")
	}
	if _, n, damaged := get(s, k, l, slots[1:2]); n != 0 || !damaged {
		t.Errorf("a freed slot has %d positions", n)
	}
	for i := range []int{0, 2} {
		if got, n, _ := get(s, k, l, slots[2*i:2*i+1]); n != 4 || !bytes.Equal(got, c[8*i:8*i+4].body(l)) {
			t.Errorf("the neighbour %d has %d positions", 2*i, n)
		}
	}
}

// TestStoreIsSafe reads stored positions of a slot while others of it are written,
// memory grows, and stages come.
func TestStoreIsSafe(t *testing.T) {
	k := stageOf(1)
	l := Layout{Runs: 2, Row: 1 << 14}
	s := newStore(t, 32, 64<<20)
	c := someCells(l, 16, 6)
	first := []index.Run{{Slot: 0, N: 16}}
	if err := s.Put(k, l.CellBytes(), first, c.sums(), c.body(l)); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for range 20 {
				if got, n, damaged := get(s, k, l, first); n != 16 || damaged || !bytes.Equal(got, c.body(l)) {
					t.Errorf("%d positions, damaged %v", n, damaged)
				}
			}
		})
	}
	for w := range 2 {
		all.Go(func() {
			for i := range 20 {
				runs := []index.Run{{Slot: 0, At: 16, N: 8}, {Slot: 1 + i, At: w, N: 8}}
				if w == 1 {
					runs[0].At = 24
				}
				if err := s.Put(k, l.CellBytes(), runs, c.sums(), c.body(l)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Go(func() {
		for i := range 10 {
			if err := s.Put(stageOf(i+2), 4*(i+2), []index.Run{{N: 1}}, make([]uint64, 1), make([]byte, 4*(i+2))); err != nil {
				t.Error(err)
			}
			if err := s.Free(k, 30); err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()
}

func TestLayout(t *testing.T) {
	for _, c := range []struct {
		layers kevlard.Layers
		cell   int
		want   Layout
	}{
		{kevlard.Layers{Lo: 0, Hi: 1}, 2, Layout{2, 1}},
		{kevlard.Layers{Lo: 3, Hi: 5}, 4096, Layout{4, 1024}},
		{kevlard.Layers{Lo: 3, Hi: 5}, 4 << 20, Layout{4, 1 << 20}},
		{kevlard.Layers{Lo: 3, Hi: 5}, 4094, Layout{}},
		{kevlard.Layers{Lo: 3, Hi: 5}, 4<<20 + 4, Layout{}},
		{kevlard.Layers{Lo: 3, Hi: 5}, 0, Layout{}},
		{kevlard.Layers{Lo: 3, Hi: 5}, -4, Layout{}},
		{kevlard.Layers{Lo: 3, Hi: 3}, 4, Layout{}},
		{kevlard.Layers{Lo: 0, Hi: 1 << 62}, 4, Layout{}},
	} {
		got, err := LayoutOf(c.layers, c.cell)
		if got != c.want || (err == nil) != (c.want != Layout{}) {
			t.Errorf("%v, %d bytes: %+v, %v, want %+v", c.layers, c.cell, got, err, c.want)
		}
	}
	l := Layout{Runs: 6, Row: 100}
	c := someCells(l, 9, 7)
	if got := l.Sums(nil, c.body(l), 9); !bytes.Equal(words(got), words(c.sums())) {
		t.Errorf("sums %x, want %x", got, c.sums())
	}
}

func words(v []uint64) (out []byte) {
	for _, w := range v {
		out = binary.LittleEndian.AppendUint64(out, w)
	}
	return out
}
