package membership

import (
	"errors"
	"fmt"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/kevlard/kevlard"
)

// The kinds of user message, and of the user part of a push/pull.
const (
	kindClaim   = 1
	kindVerdict = 2
	kindGone    = 3
	kindSync    = 4
)

// claim asks a member what it shows for a name.
type claim struct {
	Nonce  uint64         `cbor:"1,keyasint"`
	Name   kevlard.NodeID `cbor:"2,keyasint"`
	Peer   string         `cbor:"3,keyasint"`
	Boot   kevlard.BootID `cbor:"4,keyasint"`
	Addr   string         `cbor:"5,keyasint"` // where the verdict goes: the claimant's gossip host:port
	Stream bool           `cbor:"6,keyasint"` // asked over TCP, so answer over TCP
}

// What a member shows for a claimed name.
const (
	showsNothing = 0 // the name is free or not known
	showsYou     = 1 // alive, this peer, this boot
	showsOld     = 2 // this peer, but another boot or not alive
	showsOther   = 3 // held by another peer
)

// verdict answers a claim.
type verdict struct {
	Nonce uint64         `cbor:"1,keyasint"`
	From  kevlard.NodeID `cbor:"2,keyasint"` // who answers
	Shows uint8          `cbor:"3,keyasint"`
	Peer  string         `cbor:"4,keyasint"` // the holder shown
	Addr  string         `cbor:"5,keyasint"`
	State State          `cbor:"6,keyasint"`
}

// gone says that a boot left by itself or was forced out: its name is free.
type gone struct {
	Name   kevlard.NodeID `cbor:"1,keyasint"`
	Boot   kevlard.BootID `cbor:"2,keyasint"`
	Forced bool           `cbor:"3,keyasint"`
	Age    time.Duration  `cbor:"4,keyasint"` // since it was said; clocks are not compared
}

// tomb is a name that is dead but held by its peer.
type tomb struct {
	Name kevlard.NodeID `cbor:"1,keyasint"`
	Peer string         `cbor:"2,keyasint"`
	Boot kevlard.BootID `cbor:"3,keyasint"`
	Addr string         `cbor:"4,keyasint"`
	Age  time.Duration  `cbor:"5,keyasint"`
}

// syncState is the user part of a push/pull.
type syncState struct {
	Gone  []gone `cbor:"1,keyasint"`
	Tombs []tomb `cbor:"2,keyasint"`
}

// encode returns the kind byte and the CBOR of v, which is one of the types
// above: failing is our bug.
func encode(kind byte, v any) []byte {
	b, err := cbor.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("membership: encode kind %d: %v", kind, err))
	}
	return append([]byte{kind}, b...)
}

// decode reads one message into claim, verdict, gone or syncState by its kind.
// An unknown kind is not an error: v is nil.
func decode(b []byte) (v any, err error) {
	if len(b) == 0 {
		return nil, errors.New("ring message: empty")
	}
	limit := maxMessage
	if b[0] == kindSync {
		limit = maxSyncBytes
	}
	if len(b) > limit {
		return nil, fmt.Errorf("ring message kind %d: %d bytes, want at most %d", b[0], len(b), limit)
	}
	mode, err := cbor.DecOptions{
		MaxArrayElements: 2 * maxSync, MaxMapPairs: 32, MaxNestedLevels: 5,
		IndefLength: cbor.IndefLengthForbidden,
	}.DecMode()
	if err != nil {
		panic(fmt.Sprintf("membership: cbor options: %v", err))
	}
	switch body := b[1:]; b[0] {
	case kindClaim:
		var c claim
		if err = mode.Unmarshal(body, &c); err == nil {
			err = errors.Join(checkWho(c.Name, c.Peer, c.Boot), checkAddr(c.Addr))
		}
		v = c
	case kindVerdict:
		var d verdict
		if err = mode.Unmarshal(body, &d); err == nil {
			err = checkName(string(d.From))
		}
		if d.Shows > showsOther {
			err = fmt.Errorf("verdict %d: want 0 to %d", d.Shows, showsOther)
		}
		if d.Shows >= showsOld {
			err = errors.Join(err, checkWho(d.From, d.Peer, "-"), checkAddr(d.Addr), d.State.check())
		}
		v = d
	case kindGone:
		var g gone
		if err = mode.Unmarshal(body, &g); err == nil {
			err = g.check()
		}
		v = g
	case kindSync:
		var s syncState
		if err = mode.Unmarshal(body, &s); err == nil {
			err = s.check()
		}
		v = s
	default:
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ring message kind %d: %w", b[0], err)
	}
	return v, nil
}

func (g gone) check() error {
	if g.Age < 0 {
		return fmt.Errorf("gone %s: age %d", g.Name, g.Age)
	}
	return checkWho(g.Name, "-", g.Boot)
}

func (s syncState) check() error {
	for _, g := range s.Gone {
		if err := g.check(); err != nil {
			return err
		}
	}
	for _, t := range s.Tombs {
		if err := errors.Join(checkWho(t.Name, t.Peer, t.Boot), checkAddr(t.Addr)); err != nil {
			return err
		}
		if t.Age < 0 {
			return fmt.Errorf("tomb %s: age %d", t.Name, t.Age)
		}
	}
	return nil
}

func checkWho(name kevlard.NodeID, peer string, boot kevlard.BootID) error {
	b := string(boot)
	return errors.Join(checkName(string(name)),
		metaString{"peer", &peer, 1, maxPeer}.check(), metaString{"boot", &b, 1, maxBoot}.check())
}

func checkAddr(addr string) error {
	return metaString{"address", &addr, 1, maxAddr}.check()
}
