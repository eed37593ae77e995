package witness

import (
	"slices"

	"github.com/kevlard/kevlard/protocol"
)

// Round is one try of a candidate to become the owner of an epoch.
type Round struct {
	Epoch uint64
	// Highest is the newest epoch that was heard of: the next round must be above it.
	Highest uint64

	witnesses protocol.Witnesses // the newest list that is known
	at        uint64             // epoch of the record that says so
	promised  []protocol.Life
	best      *protocol.Record // to go on from; its list of witnesses is the newest
}

// NewRound begins a round for an epoch with the list of witnesses that some record
// of epoch at had.
func NewRound(epoch, at uint64, w protocol.Witnesses) Round {
	return Round{Epoch: epoch, Highest: epoch, at: at, witnesses: w}
}

// Ask lists the witnesses whose promise is wanted.
func (r *Round) Ask() []protocol.Life {
	return slices.DeleteFunc(All(r.witnesses), func(l protocol.Life) bool { return slices.Contains(r.promised, l) })
}

// Promised takes an answer from a witness in the life that it has now, and reports
// whether the round is won.
func (r *Round) Promised(from protocol.Life, p protocol.Promise) bool {
	r.Highest = max(r.Highest, p.Newer)
	if p.Epoch != r.Epoch || p.Record == nil {
		return false
	}
	if !slices.Contains(r.promised, from) {
		r.promised = append(slices.Clip(r.promised), from)
	}
	rec := *p.Record
	if newer(rec.Epoch, rec.Witnesses.Version, r.at, r.witnesses.Version) {
		r.at, r.witnesses = rec.Epoch, rec.Witnesses
	}
	if r.best == nil || rec.Epoch > r.best.Epoch || rec.Epoch == r.best.Epoch && len(rec.Tokens) > len(r.best.Tokens) {
		r.best = &rec
	}
	return r.won()
}

func (r *Round) won() bool {
	return r.best != nil && Elects(r.witnesses, func(l protocol.Life) bool { return slices.Contains(r.promised, l) })
}

// Won returns the record with which the candidate goes on as the owner of Epoch.
func (r *Round) Won(candidate protocol.Life) protocol.Record {
	rec := *r.best
	rec.Epoch, rec.Owner, rec.Witnesses = r.Epoch, candidate, r.witnesses
	return rec
}

// Before returns the owner whose record that is.
func (r *Round) Before() protocol.Life { return r.best.Owner }
