package witness

import (
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// Vote is what one witness knows of one session. The zero value knows nothing.
type Vote struct {
	Record    protocol.Record // of epoch 0: none
	Promised  uint64          // nothing of older epochs is taken
	Candidate protocol.Life   // to whom Promised was
}

// Take takes an owner's record and returns the acknowledgement. Records of one
// epoch are of one owner, so the longer log continues the shorter one.
func (v *Vote) Take(r protocol.Record) protocol.LoggedEntry {
	if r.Epoch < v.Promised || r.Epoch == v.Promised && v.Candidate != r.Owner {
		return protocol.LoggedEntry{Session: r.Session, Epoch: r.Epoch, Newer: v.Promised, Refusal: protocol.WitnessPromised}
	}
	v.Promised, v.Candidate = r.Epoch, r.Owner
	if old := v.Record; old.Epoch == r.Epoch {
		if r.Witnesses.Version < old.Witnesses.Version {
			r.Witnesses = old.Witnesses
		}
		if len(r.Tokens) < len(old.Tokens) {
			r.Tokens, r.Logprobs, r.Reused = old.Tokens, old.Logprobs, old.Reused
		}
	}
	v.Record = r
	return v.logged(r.Epoch)
}

// Append takes what an owner has generated since. A gap is not taken: the
// acknowledgement says how far the log goes.
func (v *Vote) Append(e protocol.LogEntry) protocol.LoggedEntry {
	switch {
	case e.Epoch < v.Promised:
		return protocol.LoggedEntry{Session: e.Session, Epoch: e.Epoch, Newer: v.Promised, Refusal: protocol.WitnessPromised}
	case e.Epoch != v.Record.Epoch:
		return protocol.LoggedEntry{Session: e.Session, Epoch: e.Epoch, Refusal: protocol.WitnessUnknown}
	}
	have := len(v.Record.Tokens)
	if end := e.From + len(e.Tokens); e.From <= have && have < end && end <= v.Record.MaxTokens {
		skip := have - e.From
		v.Record.Tokens = append(v.Record.Tokens, e.Tokens[skip:]...)
		if e.Logprobs != nil {
			v.Record.Logprobs = append(v.Record.Logprobs, e.Logprobs[skip:]...)
		}
		v.Record.Reused = min(e.Reused, len(v.Record.Prompt))
	}
	return v.logged(e.Epoch)
}

func (v *Vote) logged(epoch uint64) protocol.LoggedEntry {
	return protocol.LoggedEntry{Session: v.Record.Session, Epoch: epoch, Version: v.Record.Witnesses.Version, Through: len(v.Record.Tokens)}
}

// Promise answers a candidate. An epoch is promised once; asked again by the same
// candidate, the answer is the same.
func (v *Vote) Promise(id kevlard.SessionID, epoch uint64, candidate protocol.Life) protocol.Promise {
	p := protocol.Promise{Session: id, Epoch: epoch}
	switch {
	case v.Record.Epoch == 0:
		p.Refusal = protocol.WitnessUnknown
	case epoch < v.Promised || epoch == v.Promised && candidate != v.Candidate:
		p.Refusal, p.Newer, p.Owner = protocol.WitnessPromised, v.Promised, v.Candidate
	default:
		v.Promised, v.Candidate = epoch, candidate
		r := v.Record
		r.Tokens, r.Logprobs = slices.Clip(r.Tokens), Fitting(r.Logprobs) // must fit one message
		p.Record = &r
	}
	return p
}
