package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/fxamacker/cbor/v2"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node/audit"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// record is what a node tells the others about itself, beyond the few bytes that
// gossip carries. Its wire form, the answer to the mesh call "record", is the CBOR
// map of a sealed: the CBOR of the record and an ed25519 signature by the node
// key over the label recordLabel and those bytes. Readers ignore keys they do not
// know; a key is never reused.
type record struct {
	Node     kevlard.NodeID    `cbor:"1,keyasint"`
	Boot     kevlard.BootID    `cbor:"2,keyasint"`
	Version  uint64            `cbor:"3,keyasint"` // grows within a boot, from 1
	Models   []topology.Model  `cbor:"4,keyasint,omitempty"`
	Stages   []topology.Stage  `cbor:"5,keyasint,omitempty"`
	Draining bool              `cbor:"6,keyasint,omitempty"`
	Zone     string            `cbor:"7,keyasint,omitempty"`
	Labels   map[string]string `cbor:"8,keyasint,omitempty"`
	Capacity topology.Capacity `cbor:"9,keyasint"`
	Avoid    bool              `cbor:"10,keyasint,omitempty"`
	Reason   string            `cbor:"11,keyasint,omitempty"` // of that, or of the drain
	Missing  string            `cbor:"12,keyasint,omitempty"` // devices that were configured and are not there, and why
}

type sealed struct {
	Record    []byte `cbor:"1,keyasint"`
	Signature []byte `cbor:"2,keyasint"`
}

// recordLabel keeps a record's signature from being valid for anything else.
const recordLabel = "kevlard node record 1\x00"

// errRecord marks a record that is not to be believed.
var errRecord = errors.New("bad node record")

// recordCodec seals and opens records. It is safe for concurrent use.
type recordCodec struct {
	enc cbor.EncMode
	dec cbor.DecMode
}

func newRecordCodec() recordCodec {
	enc, err := cbor.CoreDetEncOptions().EncMode()
	if err != nil {
		panic(fmt.Sprintf("daemon: cbor encoder options: %v", err)) // constants of ours
	}
	dec, err := cbor.DecOptions{
		MaxArrayElements: maxStages,
		MaxMapPairs:      64,
		MaxNestedLevels:  8,
		IndefLength:      cbor.IndefLengthForbidden,
		TagsMd:           cbor.TagsForbidden,
		DupMapKey:        cbor.DupMapKeyEnforcedAPF,
	}.DecMode()
	if err != nil {
		panic(fmt.Sprintf("daemon: cbor decoder options: %v", err)) // constants of ours
	}
	return recordCodec{enc, dec}
}

// seal signs r. It fails when r is too large for others to accept.
func (c recordCodec) seal(r record, key crypto.PrivKey) ([]byte, error) {
	body, err := c.enc.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode node record: %w", err)
	}
	sig, err := key.Sign(append([]byte(recordLabel), body...))
	if err != nil {
		return nil, fmt.Errorf("sign node record: %w", err)
	}
	out, err := c.enc.Marshal(sealed{body, sig})
	if err != nil {
		return nil, fmt.Errorf("encode node record: %w", err)
	}
	if len(out) > maxRecord {
		return nil, fmt.Errorf("node record of %d bytes, others accept %d: assign fewer stages", len(out), maxRecord)
	}
	return out, nil
}

// open verifies that b was sealed by the peer with the given ID and is well
// formed. Errors are errRecord.
func (c recordCodec) open(b []byte, peerID string) (record, error) {
	fail := func(err error) (record, error) { return record{}, fmt.Errorf("%w: %w", errRecord, err) }
	if len(b) > maxRecord {
		return fail(fmt.Errorf("%d bytes, at most %d are taken", len(b), maxRecord))
	}
	var s sealed
	if err := c.dec.Unmarshal(b, &s); err != nil {
		return fail(fmt.Errorf("decode envelope: %w", err))
	}
	id, err := peer.Decode(peerID)
	if err != nil {
		return fail(fmt.Errorf("peer ID %.80q: %w", peerID, err))
	}
	pub, err := id.ExtractPublicKey()
	if err != nil {
		return fail(fmt.Errorf("public key of peer %s: %w", peerID, err))
	}
	ok, err := pub.Verify(append([]byte(recordLabel), s.Record...), s.Signature)
	if err != nil || !ok {
		return fail(errors.Join(fmt.Errorf("not signed by peer %s", peerID), err))
	}
	var r record
	if err := c.dec.Unmarshal(s.Record, &r); err != nil {
		return fail(fmt.Errorf("decode: %w", err))
	}
	if err := r.check(); err != nil {
		return fail(err)
	}
	return r, nil
}

// check refuses what this node would not want to compute with.
func (r record) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(r.Node) == 0 || len(r.Node) > protocol.MaxID || len(r.Boot) == 0 || len(r.Boot) > protocol.MaxID {
		bad("node of %d and boot of %d bytes, want 1 to %d", len(r.Node), len(r.Boot), protocol.MaxID)
	}
	if len(r.Models) > maxModels || len(r.Stages) > maxStages {
		return errors.Join(append(errs, fmt.Errorf("%d models and %d stages, at most %d and %d are taken", len(r.Models), len(r.Stages), maxModels, maxStages))...)
	}
	layers := map[kevlard.Digest]int{}
	for i, m := range r.Models {
		if m.Layers < 1 || m.Context < 1 || m.Vocab < 1 || len(m.Name) > maxText {
			bad("model %d: %d layers, context %d, vocabulary %d, name of %d bytes", i, m.Layers, m.Context, m.Vocab, len(m.Name))
		}
		layers[m.ID] = m.Layers
	}
	states := []topology.StageState{topology.Cold, topology.Loading, topology.Ready, topology.Stalled, topology.Retiring}
	for i, s := range r.Stages {
		l := s.Key.Layers
		if n, ok := layers[s.Key.Model]; !ok || l.Lo < 0 || l.Hi <= l.Lo || l.Hi > n {
			bad("stage %d: layers %v of a model with %d", i, l, n)
		}
		if !slices.Contains(states, s.State) || s.Progress < 0 || s.Progress > 1000 || s.Cells < 0 || s.RowMicros < 0 || int64(s.RowMicros) > maxRowMicros || len(s.Class) > maxText || len(s.Reason) > maxText {
			bad("stage %d: state %.20q, progress %d, cells %d, %d us for a row, class of %d and reason of %d bytes", i, s.State, s.Progress, s.Cells, s.RowMicros, len(s.Class), len(s.Reason))
		}
	}
	words := 0
	for i, s := range r.Stages {
		words += len(s.Agrees) + len(s.Disputes)
		for _, n := range slices.Concat(s.Agrees, s.Disputes) {
			if len(n) == 0 || len(n) > protocol.MaxID {
				bad("stage %d: a node's name of %d bytes, want 1 to %d", i, len(n), protocol.MaxID)
			}
		}
	}
	if words > audit.MaxNames {
		bad("the stages name %d nodes that were audited, at most %d are taken", words, audit.MaxNames)
	}
	errs = append(errs, checkCapacity(r.Capacity))
	if len(r.Zone) > maxText || len(r.Reason) > maxText || len(r.Missing) > maxText {
		bad("zone of %d bytes, reason of %d and missing of %d, want at most %d", len(r.Zone), len(r.Reason), len(r.Missing), maxText)
	}
	for k, v := range r.Labels {
		if len(k) > maxText || len(v) > maxText {
			bad("label of %d and %d bytes, want at most %d", len(k), len(v), maxText)
		}
	}
	return errors.Join(errs...)
}

// offer replaces what the record says of models on this disk. One that is not here any
// more stays known as long as there is room: a stage of it may be about to be published.
func (r *record) offer(models []LocalModel) error {
	var known []topology.Model
	r.Capacity.Weights, r.Capacity.Local = nil, nil
	for _, m := range models {
		known = append(known, m.Model)
		if m.Weights.Check(m.Model.Layers) {
			r.Capacity.Weights = append(r.Capacity.Weights, m.Weights)
		}
		if len(m.Layers) > 0 {
			r.Capacity.Local = append(r.Capacity.Local, topology.Local{Model: m.Model.ID, Layers: m.Layers})
		}
	}
	if !r.know(known...) {
		return fmt.Errorf("a node record takes %d models", maxModels)
	}
	return r.clip().check()
}

// know adds models to those that the record describes. Where they are too many others
// make room that no stage here is of: those that are not on this disk, then the last. It
// reports whether there is room.
func (r *record) know(models ...topology.Model) bool {
	r.Models = slices.Clone(r.Models)
	fresh, kept := map[kevlard.Digest]bool{}, map[kevlard.Digest]bool{}
	for _, m := range models {
		fresh[m.ID] = true
		if !slices.ContainsFunc(r.Models, func(a topology.Model) bool { return a.ID == m.ID }) {
			r.Models = append(r.Models, m)
		}
	}
	for _, s := range r.Stages {
		kept[s.Key.Model] = true
	}
	for len(r.Models) > maxModels {
		victim := -1
		for i, m := range r.Models {
			if fresh[m.ID] || kept[m.ID] {
				continue
			}
			victim = i
			if !slices.ContainsFunc(r.Capacity.Local, func(l topology.Local) bool { return l.Model == m.ID }) {
				break
			}
		}
		if victim < 0 {
			return false
		}
		r.Models = slices.Delete(r.Models, victim, victim+1)
	}
	return true
}

// clip shortens what this node could make too long for others to accept.
func (r record) clip() record {
	r.Reason, r.Missing = clipText(r.Reason), clipText(r.Missing)
	r.Stages = slices.Clone(r.Stages)
	for i := range r.Stages {
		r.Stages[i].Reason = clipText(r.Stages[i].Reason)
	}
	r.Capacity.Failed = slices.Clone(r.Capacity.Failed)
	for i := range r.Capacity.Failed {
		r.Capacity.Failed[i].Reason = clipText(r.Capacity.Failed[i].Reason)
	}
	return r
}

func clipText(s string) string {
	if len(s) <= maxText {
		return s
	}
	return string(bytes.ToValidUTF8([]byte(s[:maxText]), nil))
}

// checkCapacity bounds what a node says of what it could hold; the planner judges the
// numbers.
func checkCapacity(c topology.Capacity) error {
	if len(c.Devices) > maxDevices || len(c.Weights) > maxModels || len(c.Local) > maxModels || len(c.Serve) > maxModels || len(c.Failed) > maxFailed {
		return fmt.Errorf("capacity: %d devices, weights of %d models, %d local, %d served, %d failed loads, at most %d, %d, %d, %d and %d are taken",
			len(c.Devices), len(c.Weights), len(c.Local), len(c.Serve), len(c.Failed), maxDevices, maxModels, maxModels, maxModels, maxFailed)
	}
	for _, d := range c.Devices {
		if d.Budget < 0 {
			return fmt.Errorf("capacity: a device of %d bytes", d.Budget)
		}
	}
	for _, s := range c.Serve {
		if len(s.Name) > maxText {
			return fmt.Errorf("capacity: a model's name of %d bytes, want at most %d", len(s.Name), maxText)
		}
	}
	for _, f := range c.Failed {
		if len(f.Reason) > maxText {
			return fmt.Errorf("capacity: a reason of %d bytes, want at most %d", len(f.Reason), maxText)
		}
	}
	return nil
}
