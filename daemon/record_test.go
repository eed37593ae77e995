package daemon

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/topology"
)

// newKey makes the n-th node key of the tests, always the same one: fuzzing needs
// inputs that mean the same in every process.
func newKey(t testing.TB, n byte) (crypto.PrivKey, string) {
	key, err := crypto.UnmarshalEd25519PrivateKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return key, id.String()
}

func someRecord() record {
	m := topology.Model{ID: kevlard.Digest{1, 2}, Name: "fairy", Layers: 8, Context: 2048, Vocab: 4096}
	return record{
		Node: "node-1", Boot: "01J", Version: 7, Models: []topology.Model{m}, Draining: true, Zone: "z", Labels: map[string]string{"rack": "4"},
		Stages: []topology.Stage{
			{Key: kevlard.StageKey{Model: m.ID, Layers: kevlard.Layers{Lo: 0, Hi: 3}}, State: topology.Ready, Class: "c", Progress: 1000, Cells: 4096, Agrees: []kevlard.NodeID{"node-2"}, Disputes: []kevlard.NodeID{"node-3"}},
			{Key: kevlard.StageKey{Model: m.ID, Layers: kevlard.Layers{Lo: 3, Hi: 8}}, State: topology.Cold, Reason: "engine exited: signal: killed"},
		},
	}
}

func TestRecordRoundTrip(t *testing.T) {
	key, id := newKey(t, 1)
	c := newRecordCodec()
	b, err := c.seal(someRecord(), key)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.open(b, id)
	if err != nil || !reflect.DeepEqual(got, someRecord()) {
		t.Errorf("opened %+v, %v", got, err)
	}
}

// TestRecordIsBelievedOnlyFromItsPeer changes any byte, or the peer.
func TestRecordIsBelievedOnlyFromItsPeer(t *testing.T) {
	key, id := newKey(t, 1)
	_, other := newKey(t, 2)
	c := newRecordCodec()
	b, err := c.seal(someRecord(), key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.open(b, other); !errors.Is(err, errRecord) {
		t.Errorf("another peer's record: %v", err)
	}
	rapid.Check(t, func(t *rapid.T) {
		bad := bytes.Clone(b)
		bad[rapid.IntRange(0, len(b)-1).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		if r, err := c.open(bad, id); err == nil && !reflect.DeepEqual(r, someRecord()) {
			t.Fatalf("a damaged record was opened as %+v", r)
		}
	})
}

func TestRecordLimits(t *testing.T) {
	key, id := newKey(t, 1)
	c := newRecordCodec()
	for want, change := range map[string]func(*record){
		"want 1 to 128":       func(r *record) { r.Boot = "" },
		"models and":          func(r *record) { r.Models = make([]topology.Model, maxModels+1) },
		"0 layers":            func(r *record) { r.Models[0].Layers = 0 },
		"layers [0,9)":        func(r *record) { r.Stages[0].Key.Layers.Hi = 9 },
		"of a model with 0":   func(r *record) { r.Stages[0].Key.Model = kevlard.Digest{9} },
		"name of 0 bytes":     func(r *record) { r.Stages[0].Agrees = []kevlard.NodeID{""} },
		"name of 129 bytes":   func(r *record) { r.Stages[1].Disputes = []kevlard.NodeID{kevlard.NodeID(strings.Repeat("x", 129))} },
		"name 258 nodes":      func(r *record) { r.Stages[1].Agrees = slices.Repeat([]kevlard.NodeID{"n"}, 256) },
		"3600000001 us":       func(r *record) { r.Stages[0].RowMicros = 3_600_000_001 },
		`state "hot"`:         func(r *record) { r.Stages[0].State = "hot" },
		"reason of 513 bytes": func(r *record) { r.Stages[1].Reason = strings.Repeat("x", maxText+1) },
	} {
		r := someRecord()
		change(&r)
		b, err := c.seal(r, key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.open(b, id); !errors.Is(err, errRecord) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
		if want == "reason of 513 bytes" {
			if b, err = c.seal(r.clip(), key); err != nil {
				t.Fatal(err)
			}
			if _, err := c.open(b, id); err != nil {
				t.Errorf("a clipped reason is refused: %v", err)
			}
		}
	}
	r := someRecord()
	for range 100 {
		r.Labels[strings.Repeat("k", 100)+string(rune('a'+len(r.Labels)))] = strings.Repeat("v", 4000)
	}
	if _, err := c.seal(r, key); err == nil {
		t.Error("a record over the limit was sealed")
	}
}

// TestRecordTakesWhatFits: more models than others take of one node leave the node with
// the first of them, and a stage of yet another model is published all the same.
func TestRecordTakesWhatFits(t *testing.T) {
	key, id := newKey(t, 1)
	r, err := newRecords(record{Node: "me", Boot: "m", Version: 1}, key, nil, func(string, kevlard.NodeID, string, string) {}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	described := func(n int, runs int) LocalModel {
		m := topology.Model{ID: kevlard.Digest{byte(n), byte(n >> 8), 1}, Name: fmt.Sprint("m", n), Layers: max(runs, 1), Context: 8, Vocab: 8, Width: 4}
		w := topology.Weights{Model: m.ID}
		for k := range m.Layers {
			w.Layers = append(w.Layers, topology.Run{Count: 1, Bytes: 1<<40 + int64(k%2)})
		}
		return LocalModel{Model: m, Layers: []kevlard.Layers{{Hi: m.Layers}}, Weights: w}
	}
	accepted := func(want int) record {
		t.Helper()
		got, err := r.codec.open(r.sealed(), id)
		if err != nil || len(got.Models) != want {
			t.Fatalf("others see %d models, want %d: %v", len(got.Models), want, err)
		}
		return got
	}
	var models []LocalModel
	for n := range maxModels + 6 {
		models = append(models, described(n, 1))
	}
	if _, _, taken, err := r.offer(models, nil); taken != maxModels || err != nil {
		t.Errorf("%d models are taken of %d: %v", taken, len(models), err)
	}
	accepted(maxModels)
	other := described(999, 1)
	r.last = topology.View{Nodes: []topology.Node{{ID: "other", Models: []topology.Model{other.Model}}}}
	stage := topology.Stage{Key: kevlard.StageKey{Model: other.Model.ID, Layers: kevlard.Layers{Hi: 1}}, State: topology.Cold}
	if _, changed := r.publish(node.Publish{Stages: []topology.Stage{stage}}); !changed {
		t.Error("a stage is not published")
	}
	if got := accepted(maxModels); got.Models[0].ID != models[0].Model.ID || !slices.ContainsFunc(got.Models, func(m topology.Model) bool { return m.ID == other.Model.ID }) {
		t.Errorf("the first or the published model made room: %+v", got.Models)
	}
	if _, _, taken, err := r.offer(models, nil); taken != maxModels-1 || err != nil {
		t.Errorf("%d models are taken beside the one of the stage: %v", taken, err)
	}
	large := make([]LocalModel, maxModels)
	for n := range large {
		large[n] = described(n, 1000)
	}
	_, _, taken, err := r.offer(large, nil)
	if err != nil || taken == 0 || taken == len(large) {
		t.Errorf("%d of %d large models are taken: %v", taken, len(large), err)
	}
	if got, err := r.codec.open(r.sealed(), id); err != nil || len(got.Capacity.Weights) != taken {
		t.Errorf("others see the weights of %d models, want %d: %v", len(got.Capacity.Weights), taken, err)
	}
}

// FuzzRecord opens arbitrary envelopes and arbitrary signed contents.
func FuzzRecord(f *testing.F) {
	key, id := newKey(f, 1)
	c := newRecordCodec()
	b, err := c.seal(someRecord(), key)
	if err != nil {
		f.Fatal(err)
	}
	body, err := c.enc.Marshal(someRecord())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(body)
	f.Add([]byte{0xa1, 0x05, 0x9b, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := c.open(b, id); err != nil && !errors.Is(err, errRecord) {
			t.Errorf("error %v is no errRecord", err)
		}
		sig, err := key.Sign(append([]byte(recordLabel), b...))
		if err != nil {
			t.Fatal(err)
		}
		env, err := c.enc.Marshal(sealed{b, sig})
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.open(env, id)
		if err != nil {
			return
		}
		if err := r.check(); err != nil {
			t.Errorf("opened a record that fails its check: %v", err)
		}
		again, err := c.seal(r, key)
		if err != nil {
			return // re-encoded larger than the limit
		}
		if back, err := c.open(again, id); err != nil || !reflect.DeepEqual(back, r) {
			t.Errorf("%+v came back as %+v, %v", r, back, err)
		}
	})
}
