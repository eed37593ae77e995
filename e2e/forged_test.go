package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// forge changes 4096 of the bytes of layer 6 behind the node's back:
// size, time and inode of the file stay, by which the digests that it remembers count as
// those of the file.
func (s *single) forge(t *testing.T) {
	t.Helper()
	path := filepath.Join(s.dir, "models", "m.gguf")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	at := info.Size() - info.Size()/5
	b := make([]byte, 4096)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	for i := range b {
		b[i] ^= 0x10
	}
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
}

// TestForgedWeights: a node says the digests of the model, and some of its weights are
// others. The two honest holders of its layers find it. Until then a stream may fail with
// the reason; once it is known, every stream is what the right weights yield.
func TestForgedWeights(t *testing.T) {
	first := newSingle(t, "first")
	first.holds(t, 0, 4, nil)
	first.start(t)
	first.up(t)
	holder := func(name string) *single {
		s := newSingle(t, name)
		s.holds(t, 4, 8, nil)
		s.joins(first)
		s.start(t)
		s.up(t)
		return s
	}
	second, third, forged := holder("second"), holder("third"), holder("forged")
	client := load.NewClient("http://" + first.addr(0))
	defer client.CloseIdle()
	ask := load.Request{Model: "fairy", Prompt: "Once upon a time", MaxTokens: 24, Seed: 1, IgnoreEOS: true}
	var want load.Result
	eventually(t, readyWithin, func() error {
		want = client.Stream(t.Context(), ask, nil)
		return want.Err
	})
	about := func(s *single, typ string) (out []report.Event) {
		t.Helper()
		err := api.NewClient(s.socket()).Events(t.Context(), time.Hour, false, func(e report.Event) error {
			if e.Type == typ && e.Peer == "forged" {
				out = append(out, e)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if e := append(about(first, "distrusted"), about(second, "audit-differs")...); len(e) != 0 {
		t.Fatalf("with the right weights: %+v", e)
	}

	forged.stop(t)
	forged.forge(t)
	forged.start(t)
	forged.up(t)
	before := 0
	eventually(t, readyWithin, func() error {
		if len(about(first, "distrusted")) > 0 {
			return nil
		}
		before++
		got := client.Stream(t.Context(), ask, nil)
		return fmt.Errorf("the forged weights are not found; stream %d: %q, %v", before, got.Text(), got.Err)
	})
	for range 12 {
		if got := client.Stream(t.Context(), ask, nil); got.Err != nil || !got.Same(want) {
			t.Errorf("once it is known: %q, %v, want %q", got.Text(), got.Err, want.Text())
		}
	}
	differs := append(about(second, "audit-differs"), about(third, "audit-differs")...)
	if len(differs) == 0 || !strings.Contains(differs[0].Detail, "layers [4,8) of model sha256:") {
		t.Errorf("the auditors report %+v", differs)
	}
	st, err := api.NewClient(first.socket()).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = errors.New("no problem names it")
	for _, p := range st.Problems {
		if strings.HasPrefix(p.What, "node forged computes layers [4,8) of model fairy") {
			err = nil
		}
	}
	if err != nil {
		t.Errorf("%v: %+v", err, st.Problems)
	}
	t.Logf("%d streams before it was known", before)
	for _, s := range []*single{forged, third, second, first} {
		s.stop(t)
	}
}
