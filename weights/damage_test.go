package weights

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/model"
)

// TestFlippedByte wants a chunk that was changed on its way to be rejected, counted with
// its sender's name, and fetched again; a sender of many to be dropped.
func TestFlippedByte(t *testing.T) {
	for _, flips := range []int{1, 1000} {
		n := newNetwork(t)
		m := synth(t, 1)
		n.add("bad", "", m)
		me := n.add("me", t.TempDir())
		me.fetcher.cfg.Timing.NoHolder = time.Minute
		left := flips
		n.meddle = func(from kevlard.NodeID, body []byte) {
			if from == "bad" && left > 0 {
				body[len(body)/2] ^= 1
				left--
			}
		}
		// The other one comes when enough was found wrong. Were it there before, a slow
		// machine could ask it for the same chunk, and not look at the wrong one any more.
		reject, enough := me.fetcher.cfg.Rejected, make(chan struct{})
		me.fetcher.cfg.Rejected = func(from kevlard.NodeID, detail string) {
			if reject(from, detail); len(me.rejected) == min(flips, 3) { // the loop calls, one at a time
				close(enough)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var other sync.WaitGroup
		other.Go(func() {
			select {
			case <-enough:
				n.add("a", "", m)
			case <-ctx.Done():
			}
		})
		var last Progress
		path, err := me.fetcher.Fetch(t.Context(), m.ID, m.All(), func(p Progress) { last = p })
		cancel()
		if other.Wait(); err != nil {
			t.Fatal(err)
		}
		whole(t, path, m, m.All())
		i := slices.IndexFunc(last.Holders, func(h HolderProgress) bool { return h.Node == "bad" })
		if i < 0 || last.Holders[i].Wrong < 1 || (last.Holders[i].Dropped != "") != (flips > 1) {
			t.Errorf("%d flips: holders %+v", flips, last.Holders)
		}
		if len(me.rejected) == 0 || !strings.HasPrefix(me.rejected[0], "bad: ") {
			t.Errorf("%d flips: rejected %q", flips, me.rejected)
		}
	}
}

// TestDamagedHolder wants a node whose file is damaged on disk to refuse it by itself, and
// the unit to come from another.
func TestDamagedHolder(t *testing.T) {
	n := newNetwork(t)
	m := synth(t, 1)
	n.add("a", "", m)
	damaged := copied(t, m)
	rot(t, damaged.Path)
	b := n.add("b", "", damaged)
	me := n.add("me", t.TempDir())
	path, err := me.fetcher.Fetch(t.Context(), m.ID, m.All(), nil)
	if err != nil {
		t.Fatal(err)
	}
	whole(t, path, m, m.All())
	if got := len(b.library.Held(m.ID)); got != len(m.Units)-1 {
		t.Errorf("the damaged node says that it has %d of %d units", got, len(m.Units))
	}
	if len(me.rejected) != 0 {
		t.Errorf("rejected %q: the node refused by itself", me.rejected)
	}
}

// rot changes bytes in the middle of a file as a disk does: nothing else tells.
func rot(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte("bits rot"), info.Size()/2)
	if err = errors.Join(err, f.Close(), os.Chtimes(path, info.ModTime(), info.ModTime())); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedIsFetched wants a node that has found its own weights damaged to fetch them
// again when it is told to, and then to give them to others: first those of a model file,
// then those that it had fetched.
func TestDamagedIsFetched(t *testing.T) {
	n := newNetwork(t)
	m := synth(t, 1)
	n.add("a", "", m)
	file := copied(t, m)
	rot(t, file.Path)
	b := n.add("b", t.TempDir(), file)
	last := file.Path
	for _, round := range []string{"file", "fetched"} {
		// Somebody else wants it all, and b notices.
		if path, err := n.add("finder", t.TempDir()).fetcher.Fetch(t.Context(), m.ID, m.All(), nil); err != nil {
			t.Fatal(err)
		} else {
			whole(t, path, m, m.All())
		}
		n.remove("finder")
		if got := len(b.library.Held(m.ID)); got != len(m.Units)-1 {
			t.Fatalf("%s: b says that it has %d of %d units", round, got, len(m.Units))
		}
		path, err := b.fetcher.Fetch(t.Context(), m.ID, m.All(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if whole(t, path, m, m.All()); round == "file" && path == last {
			t.Errorf("%s is damaged, and found good", path)
		}
		if got := len(b.library.Held(m.ID)); got != len(m.Units) {
			t.Errorf("%s: after it was fetched again, b says that it has %d of %d units", round, got, len(m.Units))
		}
		n.remove("a")
		if path, err = n.add("taker", t.TempDir()).fetcher.Fetch(t.Context(), m.ID, m.All(), nil); err != nil {
			t.Fatalf("%s: from b alone: %v", round, err)
		}
		whole(t, path, m, m.All())
		n.remove("taker")
		n.add("a", "", m)

		// The file is still damaged. Now a fetched unit is too, and b is started anew.
		if path, err = b.fetcher.Fetch(t.Context(), m.ID, m.All(), nil); err != nil {
			t.Fatal(err)
		}
		rot(t, model.UnitPath(path, m.Units[2].Digest))
		b = n.add("b", filepath.Dir(path))
	}
}

// TestLateChunk wants a chunk of a request that was taken back to be dropped where it would
// do harm: when another list counts, while the unit is read as a whole, and after.
func TestLateChunk(t *testing.T) {
	m := synth(t, 1)
	n := newNetwork(t)
	a := n.add("a", "", m)
	me := n.add("me", t.TempDir())
	path, err := me.fetcher.Fetch(t.Context(), m.ID, kevlard.Layers{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := me.library.store(t.Context(), m.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	u := m.Units[2]
	it := item{name: u.Name, digest: u.Digest, bytes: u.Bytes}
	right, _, err := a.library.list(t.Context(), u.Digest)
	if err != nil {
		t.Fatal(err)
	}
	wrong := slices.Clone(right)
	wrong[0]++
	junk := make([]byte, ChunkBytes)
	put := func(i int, b, sums []byte) bool {
		t.Helper()
		kept, err := s.write(it, i, b, listOf(sums))
		if err != nil {
			t.Fatal(err)
		}
		return kept
	}
	if _, err := s.compare(t.Context(), it, wrong); err != nil {
		t.Fatal(err)
	}
	if !put(0, junk, wrong) {
		t.Error("a chunk of the list that counts was dropped")
	}
	if have, err := s.compare(t.Context(), it, right); err != nil || slices.Contains(have, true) {
		t.Fatalf("chunks there: %v, %v", have, err)
	}
	for i := range it.chunks() {
		b, err := a.library.read(u.Digest, i)
		if err != nil {
			t.Fatal(err)
		}
		if !put(i, b, right) {
			t.Errorf("chunk %d was dropped", i)
		}
	}
	if put(0, junk, wrong) {
		t.Error("a late chunk of another list was written")
	}
	if ok, damaged, err := s.check(t.Context(), it, right); err != nil || !ok {
		t.Fatalf("the unit is right: %v, damaged %v, %v", ok, damaged, err)
	}
	for _, list := range [][]byte{wrong, right} {
		if put(0, junk, list) {
			t.Error("a chunk was written to a unit that was found right")
		}
	}
	got, err := os.ReadFile(model.UnitPath(path, u.Digest))
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 0, u.Bytes)
	for i := range it.chunks() {
		b, err := a.library.read(u.Digest, i)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, b...)
	}
	if !slices.Equal(got, want) {
		t.Error("what is kept is not the unit")
	}
}
