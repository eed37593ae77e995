package daemon_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/model"
	"github.com/kevlard/kevlard/weights"
)

// bigModel writes a model of 6 MB that no other test has.
func bigModel(t *testing.T) *model.Manifest { return synthetic(t, 4) }

func synthetic(t *testing.T, layers int) *model.Manifest {
	t.Helper()
	path := filepath.Join(t.TempDir(), "big.gguf")
	if err := model.Synth(path, model.SynthSpec{Type: model.Q8_0, Layers: layers, Dim: 384, Heads: 8, KVHeads: 4, FFN: 768, Vocab: 500, Seed: 1}, nil); err != nil {
		t.Fatal(err)
	}
	m, err := model.Load(path, "")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// shelf is a library with one model that was not fetched.
func shelf(m *model.Manifest) *weights.Library {
	l := weights.NewLibrary("", nil)
	l.Add(m)
	return l
}

// counted is a counter of a daemon.
func counted(t *testing.T, m *member, name, label string) float64 {
	t.Helper()
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			if f.GetName() == name && (label == "" || s.GetLabel()[0].GetValue() == label) {
				return s.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s %s", name, label)
	return 0
}

// linked waits until a node reaches others.
func (r *ring) linked(m *member, to ...kevlard.NodeID) {
	r.t.Helper()
	r.until("the mesh is connected", func() bool {
		return !slices.ContainsFunc(to, func(n kevlard.NodeID) bool {
			return !slices.ContainsFunc(m.Status().Links, func(l report.Link) bool { return l.Peer == string(n) && l.Up })
		})
	})
}

// TestFetchWeights lets a node with an empty disk fetch a stage from two, over TLS, and
// kills one of them in the middle.
func TestFetchWeights(t *testing.T) {
	t.Parallel()
	m := bigModel(t)
	r := newRing(t)
	r.bulk = "tls"
	r.library = func(n kevlard.NodeID) *weights.Library {
		if n == "a" || n == "b" {
			return shelf(m)
		}
		return nil // its own
	}
	a, b, c := r.start("a"), r.start("b"), r.start("c")
	r.linked(c, "a", "b")
	layers := span(1, 4)
	var once sync.Once
	killed := make(chan struct{})
	var last report.Fetch
	path, err := c.FetchWeights(t.Context(), m.ID, layers, func(f report.Fetch) {
		last = f
		if f.Bytes < f.Total && len(c.Fetches()) == 0 {
			t.Error("a fetch that runs is not listed")
		}
		if f.Bytes > f.Total/4 {
			once.Do(func() {
				go func() {
					r.kill(b)
					close(killed)
				}()
			})
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	<-killed
	v, err := model.Verify(path, "")
	if err != nil || !v.OK() || !v.Manifest.Holds(layers) || v.Manifest.Holds(m.All()) {
		t.Errorf("%+v, %v: want layers %v, verified, and no others", v, err, layers)
	}
	if want := m.StageBytes(layers); last.Bytes != want || last.Total != want || last.Fetched < want {
		t.Errorf("progress %+v, want %d bytes", last, want)
	}
	if sent, came := counted(t, a, "kevlard_weights_bytes_total", "sent"), counted(t, c, "kevlard_weights_bytes_total", "fetched"); sent == 0 || came < float64(m.StageBytes(layers)) {
		t.Errorf("a sent %v bytes, c counts %v", sent, came)
	}
	if !slices.ContainsFunc(c.Events(time.Time{}), func(e report.Event) bool { return e.Type == "weights-fetched" }) {
		t.Error("no event says that weights were fetched")
	}
	// A restarted daemon has them, and gives them to others.
	r.kill(c)
	c = r.run(c.cfg)
	d := r.start("d")
	r.linked(d, "c")
	r.kill(a)
	if other, err := d.FetchWeights(t.Context(), m.ID, layers, nil); err != nil || other == path {
		t.Errorf("from one that fetched itself: %q, %v", other, err)
	}
	if again, err := c.FetchWeights(t.Context(), m.ID, layers, nil); err != nil || again != path {
		t.Errorf("after a restart: %q, %v", again, err)
	}
	_, err = c.FetchWeights(t.Context(), m.ID, span(0, 1), nil)
	if !errors.Is(err, weights.ErrNoHolder) || !strings.Contains(err.Error(), "embedding, layer.0") {
		t.Errorf("what nobody has: %v", err)
	}
}

// TestFetchSurvivesAFlippedByte changes one byte on its way, as a bulk transport without
// encryption could, and wants it rejected, counted and named.
func TestFetchSurvivesAFlippedByte(t *testing.T) {
	m := bigModel(t)
	r := newRing(t)
	r.bulk = "memory"
	r.library = func(n kevlard.NodeID) *weights.Library {
		if n == "c" {
			return nil
		}
		return shelf(m)
	}
	r.start("a")
	r.start("b")
	c := r.start("c")
	r.linked(c, "a", "b")
	var once sync.Once
	r.fabric.setMeddle(func(from, to kevlard.NodeID, header, body []byte) bool {
		if from == "a" && weights.IsPiece(header) {
			once.Do(func() { body[len(body)-1] ^= 0x80 })
		}
		return true
	})
	var last report.Fetch
	path, err := c.FetchWeights(t.Context(), m.ID, m.All(), func(f report.Fetch) { last = f })
	if err != nil {
		t.Fatal(err)
	}
	if v, err := model.Verify(path, ""); err != nil || !v.OK() || len(v.Manifest.Absent) > 0 {
		t.Errorf("%+v, %v", v, err)
	}
	i := slices.IndexFunc(last.Holders, func(h report.FetchHolder) bool { return h.Node == "a" })
	if i < 0 || last.Holders[i].Wrong != 1 || counted(t, c, "kevlard_weights_rejected_total", "") != 1 {
		t.Errorf("holders %+v, want one wrong chunk of a, counted", last.Holders)
	}
	if !slices.ContainsFunc(c.Events(time.Time{}), func(e report.Event) bool { return e.Type == "weights-rejected" && e.Peer == "a" }) {
		t.Error("no event names a")
	}
}
