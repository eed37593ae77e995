package weights

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/model"
)

func TestFetchFromSeveral(t *testing.T) {
	n := newNetwork(t)
	m := synth(t, 1)
	a, b := n.add("a", "", m), n.add("b", "", m)
	n.add("c", "")
	me := n.add("me", t.TempDir())
	var last Progress
	l := kevlard.Layers{Lo: 1, Hi: 3}
	path, err := me.fetcher.Fetch(t.Context(), m.ID, l, func(p Progress) { last = p })
	if err != nil {
		t.Fatal(err)
	}
	whole(t, path, m, l)
	want := m.StageBytes(l)
	if !last.Ended || last.Done != want || last.Total != want || len(last.Units) != 2 || !last.Units[1].Verified || last.Name != m.Name {
		t.Errorf("progress %+v, want %d bytes", last, want)
	}
	if a.sent == 0 || b.sent == 0 || a.sent+b.sent != last.Fetched || last.Fetched < want || last.Fetched > want+ChunkBytes {
		t.Errorf("%d and %d bytes were sent, %d came: want %d and the header", a.sent, b.sent, last.Fetched, want)
	}
	got, err := model.Load(path, "")
	if err != nil || strings.Join(got.Absent, " ") != "embedding layer.0 layer.3 head" {
		t.Errorf("absent: %v, %v", got.Absent, err)
	}
	// Once more, of which one unit is there; and from one that fetched itself.
	n.remove("a")
	n.remove("b")
	other := n.add("other", t.TempDir())
	if path, err = other.fetcher.Fetch(t.Context(), m.ID, l, nil); err != nil {
		t.Fatal(err)
	}
	whole(t, path, m, l)
	if path, err = other.fetcher.Fetch(t.Context(), m.ID, l, nil); err != nil || path == "" {
		t.Errorf("what is there was not found: %q, %v", path, err)
	}
}

// TestHeaderOnly is what a gateway needs.
func TestHeaderOnly(t *testing.T) {
	n := newNetwork(t)
	m := synth(t, 1)
	n.add("a", "", m)
	me := n.add("me", t.TempDir())
	path, err := me.fetcher.Fetch(t.Context(), m.ID, kevlard.Layers{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := model.Load(path, "")
	if err != nil || got.ID != m.ID || len(got.Held()) != 0 {
		t.Errorf("%+v, %v: want the model without units", got, err)
	}
}

// TestFileIsEnough wants no directory for a model that is there as a file.
func TestFileIsEnough(t *testing.T) {
	n := newNetwork(t)
	m := synth(t, 1)
	dir := t.TempDir()
	me := n.add("me", dir, m)
	for _, l := range []kevlard.Layers{{}, m.All()} {
		if path, err := me.fetcher.Fetch(t.Context(), m.ID, l, nil); err != nil || path != m.Path {
			t.Errorf("layers %v: %q, %v, want %s", l, path, err, m.Path)
		}
	}
	if _, err := me.fetcher.Fetch(t.Context(), kevlard.Digest{1}, kevlard.Layers{}, nil); !errors.Is(err, ErrNoHolder) {
		t.Errorf("a model that nobody has: %v", err)
	}
	if left := names(dir); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// TestRemovedUnit wants a unit that somebody removed, or wrote to, to be fetched again.
func TestRemovedUnit(t *testing.T) {
	n := newNetwork(t)
	m := synth(t, 1)
	n.add("a", "", m)
	me := n.add("me", t.TempDir())
	l := kevlard.Layers{Lo: 0, Hi: 1}
	path, err := me.fetcher.Fetch(t.Context(), m.ID, l, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.Remove(model.UnitPath(path, m.Units[0].Digest)), os.WriteFile(model.UnitPath(path, m.Units[1].Digest), []byte("no weights"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if path, err = me.fetcher.Fetch(t.Context(), m.ID, l, nil); err != nil {
		t.Fatal(err)
	}
	whole(t, path, m, l)
}

func TestNobodyHasIt(t *testing.T) {
	n := newNetwork(t)
	m := synth(t, 1)
	l := kevlard.Layers{Lo: 0, Hi: 2}
	holder := n.add("holder", t.TempDir())
	me := n.add("me", t.TempDir())
	if _, err := me.fetcher.Fetch(t.Context(), m.ID, l, nil); !errors.Is(err, ErrNoHolder) {
		t.Errorf("error %v, want ErrNoHolder", err)
	}
	n.add("whole", "", m)
	if _, err := holder.fetcher.Fetch(t.Context(), m.ID, kevlard.Layers{Lo: 0, Hi: 1}, nil); err != nil {
		t.Fatal(err)
	}
	n.remove("whole")
	_, err := me.fetcher.Fetch(t.Context(), m.ID, l, nil)
	if !errors.Is(err, ErrNoHolder) || !strings.Contains(err.Error(), "layer.1") || strings.Contains(err.Error(), "layer.0") {
		t.Errorf("error %v, want one that names layer.1 alone", err)
	}
	if _, err := me.fetcher.Fetch(t.Context(), m.ID, kevlard.Layers{Lo: 3, Hi: 9}, nil); err == nil || !strings.Contains(err.Error(), "[0,4)") {
		t.Errorf("layers that are not: %v", err)
	}
}

// TestNobodyToWaitFor: the only fetch does not say that others come first.
func TestNobodyToWaitFor(t *testing.T) {
	n := newNetwork(t)
	m := synth(t, 1)
	n.add("a", "", m)
	me := n.add("me", t.TempDir())
	told := 0
	if _, err := me.fetcher.Fetch(t.Context(), m.ID, m.All(), func(p Progress) {
		told++
		if strings.Contains(p.Waits, "other fetches") {
			t.Errorf("it says that it waits: %q", p.Waits)
		}
	}); err != nil || told == 0 {
		t.Fatalf("%v, told %d times", err, told)
	}
}

// TestWaitsItsTurn wants a fetch to say that it waits for another one, and then that it
// does not.
func TestWaitsItsTurn(t *testing.T) {
	n := newNetwork(t)
	m := synth(t, 1)
	n.add("a", "", m)
	me := n.add("me", t.TempDir())
	unlock, err := me.fetcher.lock(t.Context(), m.ID, func() { t.Error("it waits for nobody") })
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan string, 64)
	done := make(chan error)
	go func() {
		_, err := me.fetcher.Fetch(t.Context(), m.ID, m.All(), func(p Progress) { told <- p.Waits })
		done <- err
	}()
	if waits := <-told; waits == "" || len(me.fetcher.Active()) != 1 {
		t.Errorf("first told %q, and %d fetches are active", waits, len(me.fetcher.Active()))
	}
	unlock()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	close(told)
	last := "not told"
	for last = range told {
	}
	if last != "" {
		t.Errorf("in the end it waits: %q", last)
	}
}

// TestGoesOn stops a fetch in the middle, in whatever state, and wants the next one to
// fetch only what had not come. The second fetcher is another process, as far as it can know.
func TestGoesOn(t *testing.T) {
	n := newNetwork(t)
	m := synth(t, 1)
	a := n.add("a", "", m)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := n.add("me", dir)
	_, err := first.fetcher.Fetch(ctx, m.ID, m.All(), func(p Progress) {
		if p.Done > p.Total/2 && p.Done < p.Total {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("the fetch ended with %v before it was stopped", err)
	}
	before := a.sent
	second := n.add("me", dir)
	path, err := second.fetcher.Fetch(t.Context(), m.ID, m.All(), nil)
	if err != nil {
		t.Fatal(err)
	}
	whole(t, path, m, m.All())
	// What was under way when it was stopped is sent twice: at most what one holder is asked for.
	if most := m.Bytes() + ChunkBytes + 4*ChunkBytes; a.sent > most || before == 0 {
		t.Errorf("%d bytes were sent, %d of them before: want at most %d", a.sent, before, most)
	}
}

// TestCrashes puts the directory into the states that a crash can leave.
func TestCrashes(t *testing.T) {
	m := synth(t, 1)
	for name, c := range map[string]struct {
		hurt  func(t *testing.T, path string)
		fresh bool // everything is fetched again, not only one unit
	}{
		"renamed and not listed": {hurt: func(t *testing.T, path string) {
			index, err := model.ReadParts(path)
			if err != nil {
				t.Fatal(err)
			}
			index.Units[1].Stamp = nil
			if err := index.Write(path); err != nil {
				t.Fatal(err)
			}
		}},
		"renamed and not written": {hurt: func(t *testing.T, path string) {
			index, err := model.ReadParts(path)
			if err != nil {
				t.Fatal(err)
			}
			index.Units[1].Stamp = nil
			unit := model.UnitPath(path, m.Units[1].Digest)
			if err := errors.Join(index.Write(path), os.WriteFile(unit, make([]byte, m.Units[1].Bytes), 0o600)); err != nil {
				t.Fatal(err)
			}
		}},
		"a part of zeroes, an index half written": {hurt: func(t *testing.T, path string) {
			d := m.Units[2].Digest
			err := os.Remove(model.UnitPath(path, d))
			err = errors.Join(err, os.WriteFile(filepath.Join(path, strings.TrimPrefix(d.String(), "sha256:")+".part"), make([]byte, 3<<20), 0o600))
			err = errors.Join(err, os.WriteFile(filepath.Join(path, ".parts-1"), []byte("{"), 0o600))
			if err != nil {
				t.Fatal(err)
			}
		}},
		"a header and nothing else": {fresh: true, hurt: func(t *testing.T, path string) {
			if err := os.Remove(filepath.Join(path, "parts.json")); err != nil {
				t.Fatal(err)
			}
			for _, u := range m.Units {
				if err := os.Remove(model.UnitPath(path, u.Digest)); err != nil {
					t.Fatal(err)
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t)
			n.add("a", "", m)
			dir := t.TempDir()
			path, err := n.add("me", dir).fetcher.Fetch(t.Context(), m.ID, m.All(), nil)
			if err != nil {
				t.Fatal(err)
			}
			c.hurt(t, path)
			var last Progress
			again := n.add("me", dir)
			if path, err = again.fetcher.Fetch(t.Context(), m.ID, m.All(), func(p Progress) { last = p }); err != nil {
				t.Fatal(err)
			}
			whole(t, path, m, m.All())
			most := int64(3 << 20)
			if c.fresh {
				most = m.Bytes() + ChunkBytes
			}
			if last.Fetched > most {
				t.Errorf("%d bytes were fetched again, want at most %d", last.Fetched, most)
			}
			if slices.ContainsFunc(names(path), func(s string) bool { return strings.HasPrefix(s, ".parts") }) {
				t.Errorf("%v: temporary files are left", names(path))
			}
		})
	}
}

// TestDiskFull wants the error to say so, and room to be given back. What is written to
// /dev/full finds the disk full.
func TestDiskFull(t *testing.T) {
	if _, err := os.Stat("/dev/full"); errors.Is(err, fs.ErrNotExist) {
		t.Skip("this system has no /dev/full")
	}
	n := newNetwork(t)
	m := synth(t, 1)
	n.add("a", "", m)
	me := n.add("me", t.TempDir())
	path, err := me.fetcher.Fetch(t.Context(), m.ID, kevlard.Layers{Lo: 0, Hi: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	trap := filepath.Join(path, strings.TrimPrefix(m.Units[len(m.Units)-1].Digest.String(), "sha256:")+".part")
	if err := os.Symlink("/dev/full", trap); err != nil {
		t.Fatal(err)
	}
	_, err = me.fetcher.Fetch(t.Context(), m.ID, m.All(), nil)
	if !errors.Is(err, errFull) || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("error %v, want one that says that the disk is full", err)
	}
	if left := slices.DeleteFunc(names(path), func(s string) bool { return !strings.HasSuffix(s, ".part") }); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	got, err := model.Load(path, "")
	if err != nil || !got.Holds(kevlard.Layers{Lo: 0, Hi: 1}) {
		t.Errorf("what was verified is gone: absent %v, %v", got.Absent, err)
	}
	if _, err := me.fetcher.Fetch(t.Context(), m.ID, m.All(), nil); err != nil {
		t.Errorf("with room again: %v", err)
	}
	s, err := me.library.store(t.Context(), m.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.room(1 << 60); !errors.Is(err, errFull) {
		t.Errorf("room for an exbibyte: %v", err)
	}
}

// TestWrongHeader wants a node that describes another model under the ID that was asked
// for to be dropped, by name.
func TestWrongHeader(t *testing.T) {
	n := newNetwork(t)
	m, other := synth(t, 1), synth(t, 2)
	forged := *other
	forged.ID = m.ID
	n.add("forger", "", &forged)
	me := n.add("me", t.TempDir())
	_, err := me.fetcher.Fetch(t.Context(), m.ID, m.All(), nil)
	if !errors.Is(err, ErrNoHolder) || !strings.Contains(err.Error(), "node forger is not asked any more") {
		t.Errorf("error %v, want one that names the forger", err)
	}
	n.add("a", "", m)
	n.add("b", "", m)
	path, err := me.fetcher.Fetch(t.Context(), m.ID, m.All(), nil)
	if err != nil {
		t.Fatal(err)
	}
	whole(t, path, m, m.All())
}

func TestRefusals(t *testing.T) {
	n := newNetwork(t)
	m := copied(t, synth(t, 1))
	a := n.add("a", "", m)
	codec := newCodec()
	u := m.Units[0]
	for _, c := range []struct {
		r    Request
		want Refusal
		text string
	}{
		{Request{Version: 2, Kind: Describe, Model: m.ID}, Unspoken, "node a: it speaks version 1 of the weights protocol, not 2"},
		{Request{Version: 1, Kind: Describe, Model: u.Digest}, Absent, "node a: there is no model"},
		{Request{Version: 1, Kind: ListSums, Unit: m.ID}, Absent, "node a: there is no unit"},
		{Request{Version: 1, Kind: SendChunk, Unit: u.Digest, Chunk: 9999}, Absent, "chunks"},
		{Request{Version: 1, Kind: SendChunk, Unit: u.Digest}, Failing, "connection broke"},
	} {
		b, err := a.server.Answer(t.Context(), "stranger", codec.encode(c.r))
		if err != nil {
			t.Fatal(err)
		}
		got, err := codec.answer(c.r.Kind, b)
		if err != nil || got.Refusal != c.want || !strings.Contains(got.Text, c.text) {
			t.Errorf("%+v: %+v, %v", c.r, got, err)
		}
	}
	if err := os.WriteFile(m.Path, []byte("another file"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.library.read(u.Digest, 0); err == nil || !strings.Contains(err.Error(), "changed") {
		t.Errorf("a file that was replaced: %v", err)
	}
}
