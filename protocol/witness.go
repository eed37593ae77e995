package protocol

import (
	"errors"
	"fmt"

	"github.com/kevlard/kevlard"
)

// Life is a node in one life. What it promised and recorded dies with it.
type Life struct {
	Node kevlard.NodeID `cbor:"1,keyasint"`
	Boot kevlard.BootID `cbor:"2,keyasint"`
}

// Witnesses are the nodes that vote on a takeover of a session. Only its owner
// replaces them, and raises Version each time.
type Witnesses struct {
	Version uint64 `cbor:"1,keyasint"`
	Now     []Life `cbor:"2,keyasint"`
	// Before are those that are being replaced: until Now has taken their place,
	// whatever is decided needs both.
	Before []Life `cbor:"3,keyasint"`
}

// Record is what an owner tells its witnesses of a session: all that another node
// needs to go on with it. The answer is Logged with one entry.
type Record struct {
	Session   kevlard.SessionID `cbor:"1,keyasint"`
	Epoch     uint64            `cbor:"2,keyasint"`
	Owner     Life              `cbor:"3,keyasint"`
	Witnesses Witnesses         `cbor:"4,keyasint"`

	Model     kevlard.Digest   `cbor:"5,keyasint"`
	Prompt    []kevlard.Token  `cbor:"6,keyasint"`
	MaxTokens int              `cbor:"7,keyasint"`
	Sampling  kevlard.Sampling `cbor:"8,keyasint"`
	EOG       []kevlard.Token  `cbor:"9,keyasint"`
	IgnoreEOG bool             `cbor:"10,keyasint,omitempty"`
	MinTokens int              `cbor:"11,keyasint,omitempty"`
	Salt      string           `cbor:"12,keyasint,omitempty"`
	Class     string           `cbor:"13,keyasint,omitempty"` // numerics class of what was generated
	Route     kevlard.Route    `cbor:"14,keyasint"`           // used last
	Envelope  []byte           `cbor:"15,keyasint"`           // the API's own, carried as it is

	// Tokens are those generated so far, with the one that ended the answer, which is not
	// shown. Log adds to them.
	Tokens []kevlard.Token `cbor:"16,keyasint"`
	// Logprobs are those of the last len(Logprobs) of Tokens, as many as fit.
	Logprobs []kevlard.Logprobs `cbor:"17,keyasint"`
	// Reused is how many leading positions of the prompt were found instead of computed,
	// when the first token was generated.
	Reused int `cbor:"18,keyasint,omitempty"`
}

// Log tells a witness what was generated since the last one, for several sessions.
// The answer is Logged.
type Log struct {
	Entries []LogEntry `cbor:"1,keyasint"`
}

// LogEntry has the generated tokens of one session from number From on.
type LogEntry struct {
	Session  kevlard.SessionID  `cbor:"1,keyasint"`
	Epoch    uint64             `cbor:"2,keyasint"`
	From     int                `cbor:"3,keyasint"`
	Tokens   []kevlard.Token    `cbor:"4,keyasint"`
	Logprobs []kevlard.Logprobs `cbor:"5,keyasint"` // one for each of Tokens, or none
	Reused   int                `cbor:"6,keyasint,omitempty"`
}

// Logged says what a witness has of sessions. It is the acknowledgement of Record
// and Log.
type Logged struct {
	Entries []LoggedEntry `cbor:"1,keyasint"`
}

// LoggedEntry is about one session.
type LoggedEntry struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Epoch   uint64            `cbor:"2,keyasint"` // of the record or log that it answers
	Version uint64            `cbor:"3,keyasint"` // of the Witnesses that are recorded
	Through int               `cbor:"4,keyasint"` // generated tokens that are recorded
	// Newer is the epoch that was promised to another; 0 if none was. The owner is
	// superseded.
	Newer   uint64        `cbor:"5,keyasint,omitempty"`
	Refusal WitnessReason `cbor:"6,keyasint,omitempty"` // nothing was recorded
}

// WitnessReason says why a witness did not do what it was asked.
type WitnessReason string

// The reasons.
const (
	WitnessUnknown  WitnessReason = "unknown"  // no record of this session in this life
	WitnessFull     WitnessReason = "full"     // no room for another record
	WitnessPromised WitnessReason = "promised" // this epoch or a newer one, to another
	WitnessOwner    WitnessReason = "owner"    // it hears from the owner
)

// Locate asks a node what it knows of a session.
type Locate struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
}

// Located answers Locate.
type Located struct {
	Session   kevlard.SessionID `cbor:"1,keyasint"`
	Owned     bool              `cbor:"2,keyasint,omitempty"` // the sender owns it, at Epoch
	Recorded  bool              `cbor:"3,keyasint,omitempty"` // the sender is a witness, and has a record
	Epoch     uint64            `cbor:"4,keyasint,omitempty"` // the newest that it knows of
	Owner     Life              `cbor:"5,keyasint,omitempty"` // in the record
	Witnesses Witnesses         `cbor:"6,keyasint,omitempty"`
	At        uint64            `cbor:"7,keyasint,omitempty"` // epoch of the record
}

// Vote asks a witness to promise an epoch of a session to the sender.
type Vote struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Epoch   uint64            `cbor:"2,keyasint"`
	// Disowned is the owner in the record if it has told the sender that it owns the
	// session no longer: that it is heard of does not count then.
	Disowned Life `cbor:"3,keyasint,omitzero"`
}

// Promise answers Vote. With no Refusal, the witness takes nothing of older epochs
// from now on, and Record is what it has.
type Promise struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Epoch   uint64            `cbor:"2,keyasint"` // that was asked for
	Refusal WitnessReason     `cbor:"3,keyasint,omitempty"`
	Newer   uint64            `cbor:"4,keyasint,omitempty"` // with WitnessPromised: the epoch that was
	Record  *Record           `cbor:"5,keyasint,omitempty"`
	// Owner is with WitnessOwner who is heard from, with WitnessPromised to whom that epoch
	// was promised: the one to ask for the session.
	Owner Life `cbor:"6,keyasint,omitzero"`
}

// Forget tells a witness that a session needs no record any more.
type Forget struct {
	Session kevlard.SessionID `cbor:"1,keyasint"`
	Epoch   uint64            `cbor:"2,keyasint"`
	Ended   bool              `cbor:"3,keyasint,omitempty"` // it has ended, but its client may come back for a while
}

// Keep tells a witness that the owner of these sessions lives.
type Keep struct {
	Sessions []kevlard.SessionID `cbor:"1,keyasint"`
}

func (Record) kind() kind  { return kindRecord }
func (Log) kind() kind     { return kindLog }
func (Logged) kind() kind  { return kindLogged }
func (Locate) kind() kind  { return kindLocate }
func (Located) kind() kind { return kindLocated }
func (Vote) kind() kind    { return kindVote }
func (Promise) kind() kind { return kindPromise }
func (Forget) kind() kind  { return kindForget }
func (Keep) kind() kind    { return kindKeep }

func checkEpoch(id kevlard.SessionID, epoch uint64) error {
	err := checkID("session", id)
	if epoch == 0 {
		err = errors.Join(err, errors.New("epoch is 0, it counts from 1"))
	}
	return err
}

func (l Life) check() error { return errors.Join(checkID("node", l.Node), checkID("boot", l.Boot)) }

func (w Witnesses) check() error {
	err := errors.Join(checkRange("witnesses", len(w.Now), 1, MaxWitnesses), checkRange("replaced witnesses", len(w.Before), 0, MaxWitnesses))
	for _, set := range [][]Life{w.Now, w.Before} {
		for _, l := range set {
			err = errors.Join(err, l.check())
		}
	}
	return err
}

func checkLogprobs(l []kevlard.Logprobs) error {
	for i := range l {
		if err := l[i].Check(); err != nil {
			return err
		}
	}
	return nil
}

func (m Record) check() error {
	return errors.Join(checkEpoch(m.Session, m.Epoch), m.Owner.check(), m.Witnesses.check(),
		checkRange("prompt", len(m.Prompt), 1, MaxTokens), checkRange("max tokens", m.MaxTokens, 1, MaxTokens-len(m.Prompt)),
		checkRange("tokens", len(m.Tokens), 0, m.MaxTokens), checkRange("logprobs", len(m.Logprobs), 0, len(m.Tokens)),
		m.Sampling.Check(), checkRange("eog", len(m.EOG), 0, MaxItemTokens), checkRange("min tokens", m.MinTokens, 0, MaxTokens),
		checkRange("salt bytes", len(m.Salt), 0, MaxSalt), checkLength("class", m.Class), checkRange("route", len(m.Route), 0, MaxHops),
		checkRange("envelope bytes", len(m.Envelope), 0, MaxEnvelope), checkRange("reused", m.Reused, 0, len(m.Prompt)), checkLogprobs(m.Logprobs))
}

func (m Log) check() error {
	err := checkRange("entries", len(m.Entries), 1, MaxRenew)
	for _, e := range m.Entries {
		err = errors.Join(err, checkEpoch(e.Session, e.Epoch), checkRange("from", e.From, 0, MaxTokens),
			checkRange("tokens", len(e.Tokens), 1, MaxTokens-min(e.From, MaxTokens)), checkLogprobs(e.Logprobs), checkRange("reused", e.Reused, 0, MaxTokens))
		if n := len(e.Logprobs); n != 0 && n != len(e.Tokens) {
			err = errors.Join(err, fmt.Errorf("%d logprobs for %d tokens", n, len(e.Tokens)))
		}
	}
	return err
}

func (m Logged) check() error {
	err := checkRange("entries", len(m.Entries), 1, MaxRenew)
	for _, e := range m.Entries {
		err = errors.Join(err, checkEpoch(e.Session, e.Epoch), checkRange("through", e.Through, 0, MaxTokens), checkLength("refusal", e.Refusal))
	}
	return err
}

func (m Locate) check() error { return checkID("session", m.Session) }

func (m Located) check() error {
	err := checkID("session", m.Session)
	if m.Owned || m.Recorded {
		err = errors.Join(err, checkEpoch(m.Session, m.Epoch))
	}
	if m.Recorded {
		err = errors.Join(err, m.Owner.check(), m.Witnesses.check())
	}
	return err
}

func (m Vote) check() error { return checkEpoch(m.Session, m.Epoch) }

func (m Promise) check() error {
	err := errors.Join(checkEpoch(m.Session, m.Epoch), checkLength("refusal", m.Refusal))
	switch {
	case (m.Record == nil) == (m.Refusal == ""):
		err = errors.Join(err, errors.New("a record and a refusal exclude each other"))
	case m.Record != nil && m.Record.Session != m.Session:
		err = errors.Join(err, errors.New("a record of another session"))
	case m.Record != nil:
		err = errors.Join(err, m.Record.check())
	}
	return err
}

func (m Keep) check() error { return Renew(m).check() }

func (m Forget) check() error { return checkEpoch(m.Session, m.Epoch) }

const (
	// MaxWitnesses is the most witnesses of a session.
	MaxWitnesses = 3
	// MaxEnvelope is the most that the API adds to a record, in bytes.
	MaxEnvelope = 64 << 10
)
