// Package kevlard holds the nouns of the mesh as small values: who (nodes,
// boots), what (models, layers, tokens), where (routes) and with what authority
// (epochs and terms). Every package may import it; it imports only the standard
// library and nothing in it blocks.
package kevlard

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"time"
)

// NodeID is a node's name, unique in its ring. The ring binds a name to one
// libp2p peer ID until the node leaves, so a name is enough to break ties.
type NodeID string

// BootID is new each time a daemon starts (a ULID). Promises, prepared
// sessions and bound epochs die with it.
type BootID string

// SessionID names one conversation. It is opaque.
type SessionID string

// BestEffort begins the numerics class of engines whose results may differ from run to
// run: another owner could go on with other tokens, so none is shown before the
// session's witnesses have it.
const BestEffort = "best-effort:"

// Token is an index into a model's vocabulary.
type Token = int32

// Pos is the index of a token in a session, from 0.
type Pos = int

// Instant is a monotonic time in nanoseconds since an arbitrary start. Instants
// of two processes are never compared.
type Instant int64

// Never is later than every other instant.
const Never Instant = math.MaxInt64

// LateGrace is what a judge whose own timer fired late leaves others beyond the
// time that it was away, so that it reads what they sent meanwhile.
const LateGrace = 100 * time.Millisecond

// Add returns t moved by d; Never stays Never.
func (t Instant) Add(d time.Duration) Instant {
	if t == Never {
		return Never
	}
	return t + Instant(d)
}

// Sub returns the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// Digest is a SHA-256 sum.
type Digest [sha256.Size]byte

// String returns "sha256:" and 64 hex digits.
func (d Digest) String() string { return "sha256:" + hex.EncodeToString(d[:]) }

// Short returns the first 12 hex digits, for people.
func (d Digest) Short() string { return hex.EncodeToString(d[:6]) }

// IsZero reports whether d was never set.
func (d Digest) IsZero() bool { return d == Digest{} }

// ParseDigest is the inverse of Digest.String.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	hexa, ok := strings.CutPrefix(s, "sha256:")
	if !ok || len(hexa) != 2*len(d) {
		return Digest{}, fmt.Errorf("digest %q: want sha256: and 64 hex digits", s)
	}
	if _, err := hex.Decode(d[:], []byte(hexa)); err != nil {
		return Digest{}, fmt.Errorf("digest %q: %w", s, err)
	}
	return d, nil
}

// Layers is the half-open range [Lo,Hi) of a model's layers.
type Layers struct {
	Lo int `cbor:"1,keyasint" json:"lo"`
	Hi int `cbor:"2,keyasint" json:"hi"`
}

// Len returns the number of layers in the range.
func (l Layers) Len() int { return l.Hi - l.Lo }

// Contains reports whether o lies inside l.
func (l Layers) Contains(o Layers) bool { return l.Lo <= o.Lo && o.Hi <= l.Hi && o.Lo < o.Hi }

// String returns "[lo,hi)".
func (l Layers) String() string { return fmt.Sprintf("[%d,%d)", l.Lo, l.Hi) }

// Compare orders ranges by start, then end.
func (l Layers) Compare(o Layers) int {
	return cmp.Or(cmp.Compare(l.Lo, o.Lo), cmp.Compare(l.Hi, o.Hi))
}

// Hop is one stage of a route.
type Hop struct {
	Node   NodeID `cbor:"1,keyasint" json:"node"`
	Layers Layers `cbor:"2,keyasint" json:"layers"`
}

// Route is the chain of stages that one session uses now, in layer order.
type Route []Hop

// Covers reports whether r covers layers [0,n) in order without gap or overlap.
func (r Route) Covers(n int) bool {
	at := 0
	for _, h := range r {
		if h.Layers.Lo != at || h.Layers.Hi <= at {
			return false
		}
		at = h.Layers.Hi
	}
	return at == n && n > 0
}

// Uses reports whether node n is on the route.
func (r Route) Uses(n NodeID) bool {
	for _, h := range r {
		if h.Node == n {
			return true
		}
	}
	return false
}

// Fence is the pair that authorises work on a session. The epoch grows only by
// takeover, the term by the owner's own re-routes; the epoch is compared first,
// so no re-route of an old owner outbids a new owner.
type Fence struct {
	Epoch uint64 `cbor:"1,keyasint" json:"epoch"`
	Term  uint64 `cbor:"2,keyasint" json:"term"`
}

// Compare returns -1, 0 or +1 as f is older than, the same as or newer than o.
func (f Fence) Compare(o Fence) int {
	return cmp.Or(cmp.Compare(f.Epoch, o.Epoch), cmp.Compare(f.Term, o.Term))
}

// String returns "epoch.term".
func (f Fence) String() string { return fmt.Sprintf("%d.%d", f.Epoch, f.Term) }

// StageKey names a stage resident on a node.
type StageKey struct {
	Model  Digest `cbor:"1,keyasint"`
	Layers Layers `cbor:"2,keyasint"`
}

// Compare orders keys by model, then layers.
func (k StageKey) Compare(o StageKey) int {
	return cmp.Or(strings.Compare(string(k.Model[:]), string(o.Model[:])), k.Layers.Compare(o.Layers))
}

// Failure is why a session ended without an answer. Code is stable and goes to
// the client; Message is for people.
type Failure struct {
	Code    string // no_route, poisoned, capacity, overloaded, draining, disputed
	Status  int    // the HTTP status if nothing was sent yet
	Message string
}

// Error implements error.
func (f *Failure) Error() string { return f.Code + ": " + f.Message }

// Failover is one re-route of a session while it was running.
type Failover struct {
	AtToken int           // generated tokens when the evidence came
	Cause   string        // reset, silence, progress, engine-exit, engine-stall, refused, dead
	Node    NodeID        // the node that was left, if one was
	Detect  time.Duration // last token (or submission) to evidence
	Reroute time.Duration // evidence to the last prepare answered
	Restore time.Duration // to the first token after that
	Known   int           // tokens known when the new route began, prompt included
	From    int           // the position it began at: what was before, its stages held or had copies of
}

// Gap is the pause that the client saw.
func (f Failover) Gap() time.Duration { return f.Detect + f.Reroute + f.Restore }
