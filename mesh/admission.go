package mesh

import (
	"crypto/hmac"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
)

const (
	sideDialler  = "dialler"
	sideAcceptor = "acceptor"
)

// admitter is one node's side of admissions. It keeps no state between them.
type admitter struct {
	id       peer.ID
	names    names
	keys     *keys
	versions Versions
}

// keys are from admissionKey, one for each cluster secret: the first is what this
// node proves as a dialler, an acceptor proves the one that the dialler proved.
type keys struct{ atomic.Pointer[[][]byte] }

func newKeys(secrets [][]byte) (*keys, error) {
	k := &keys{}
	return k, k.set(secrets)
}

// set replaces them.
func (k *keys) set(secrets [][]byte) error {
	var all [][]byte
	for _, s := range secrets {
		if len(s) < minSecret {
			return fmt.Errorf("cluster secret: %d bytes, want at least %d: make one with `kevlard keygen`", len(s), minSecret)
		}
		key, err := admissionKey(s)
		if err != nil {
			return fmt.Errorf("derive admission key: %w", err)
		}
		all = append(all, key)
	}
	if len(all) == 0 {
		return errors.New("cluster secret: none")
	}
	k.Store(&all)
	return nil
}

// first returns the one to prove.
func (k *keys) first() []byte { return (*k.Load())[0] }

// proved returns the one under which mac is right, nil if it is none.
func (k *keys) proved(mac []byte, sum func(key []byte) []byte) []byte {
	for _, key := range *k.Load() {
		if hmac.Equal(mac, sum(key)) {
			return key
		}
	}
	return nil
}

// dial runs the dialler's side on a fresh main stream and returns what the
// acceptor proved to be. A refusal by either side is a *RefusedError; ours has
// been sent.
func (a *admitter) dial(s io.ReadWriter, remote peer.ID, c class, link uint64) (Peer, error) {
	t := transcript{dialler: a.id, acceptor: remote, first: newHello(c, a.versions, link)}
	if err := send(s, kindHello, t.first.encode()); err != nil {
		return Peer{}, err
	}
	raw, err := receive(s, kindHello)
	if err != nil {
		return Peer{}, err
	}
	if t.second, err = decodeHello(raw); err != nil {
		return Peer{}, refuse(s, "", err.Error())
	}
	if t.second.class != c || t.second.link != link {
		return Peer{}, refuse(s, "", fmt.Sprintf("hello answers %s link %d, asked was %s link %d", t.second.class, t.second.link, c, link))
	}
	if why := clash(a.versions, t.second.versions); why != "" {
		return Peer{}, refuse(s, "", why)
	}
	own := a.names.encode()
	if err := send(s, kindProof, own, t.mac(a.keys.first(), sideDialler, own)); err != nil {
		return Peer{}, err
	}
	raw, err = receive(s, kindProof)
	if err != nil {
		return Peer{}, err
	}
	theirs, encoded, mac, err := decodeProof(raw)
	if err != nil {
		return Peer{}, refuse(s, "", err.Error())
	}
	key := a.keys.proved(mac, func(key []byte) []byte { return t.mac(key, sideAcceptor, own, encoded) })
	if why := a.judge(theirs, key); why != "" {
		return Peer{}, refuse(s, string(theirs.node), why)
	}
	return Peer{Node: theirs.node, ID: remote.String(), Boot: theirs.boot}, nil
}

// arrival is a dialler that proved itself.
type arrival struct {
	peer  Peer
	class class
	link  uint64
	reply []byte // the acceptor's proof, to be sent when the arrival is let in
}

// accept runs the acceptor's side up to the dialler's proof. The caller decides
// whether to let the arrival in and then sends reply or a refusal.
func (a *admitter) accept(s io.ReadWriter, remote peer.ID) (arrival, error) {
	raw, err := receive(s, kindHello)
	if err != nil {
		return arrival{}, err
	}
	t := transcript{dialler: remote, acceptor: a.id}
	if t.first, err = decodeHello(raw); err != nil {
		return arrival{}, refuse(s, "", err.Error())
	}
	if why := clash(t.first.versions, a.versions); why != "" {
		return arrival{}, refuse(s, "", why)
	}
	t.second = newHello(t.first.class, a.versions, t.first.link)
	if err := send(s, kindHello, t.second.encode()); err != nil {
		return arrival{}, err
	}
	raw, err = receive(s, kindProof)
	if err != nil {
		return arrival{}, err
	}
	theirs, encoded, mac, err := decodeProof(raw)
	if err != nil {
		return arrival{}, refuse(s, "", err.Error())
	}
	key := a.keys.proved(mac, func(key []byte) []byte { return t.mac(key, sideDialler, encoded) })
	if why := a.judge(theirs, key); why != "" {
		return arrival{}, refuse(s, string(theirs.node), why)
	}
	own := a.names.encode()
	return arrival{
		peer:  Peer{Node: theirs.node, ID: remote.String(), Boot: theirs.boot},
		class: t.first.class,
		link:  t.first.link,
		reply: append(own, t.mac(key, sideAcceptor, encoded, own)...),
	}, nil
}

// judge returns why a proof is not good enough, or ""; key is the one proved. The
// secret comes first: a stranger learns nothing of the ring's name.
func (a *admitter) judge(theirs names, key []byte) string {
	switch {
	case key == nil:
		return "secret mismatch: the two nodes have different cluster secrets"
	case theirs.ring != a.names.ring:
		return fmt.Sprintf("ring mismatch: the peer is of ring %q, this node of ring %q", theirs.ring, a.names.ring)
	case theirs.node == a.names.node:
		return fmt.Sprintf("name mismatch: the peer claims this node's name %q", theirs.node)
	}
	return ""
}

func send(w io.Writer, k kind, parts ...[]byte) error {
	f, err := newFrame(k, nil, parts...)
	if err != nil {
		return err
	}
	if _, err := w.Write(f); err != nil {
		return fmt.Errorf("send %s: %w", k, err)
	}
	return nil
}

// receive returns the body of the wanted frame; a refusal in its place is a
// *RefusedError.
func receive(r io.Reader, k kind) ([]byte, error) {
	f, err := readFrame(r, only(k, kindRefuse))
	if err != nil {
		return nil, fmt.Errorf("receive %s: %w", k, err)
	}
	if f.kind == kindRefuse {
		return nil, &RefusedError{Reason: printable(f.body)}
	}
	return f.body, nil
}

// refuse sends a refusal and returns it as an error. That it could not be sent
// does not change the verdict.
func refuse(w io.Writer, node, reason string) error {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	refused := &RefusedError{Node: node, ByUs: true, Reason: printable([]byte(reason))}
	if err := send(w, kindRefuse, []byte(refused.Reason)); err != nil {
		return errors.Join(refused, err)
	}
	return refused
}

// printable makes text from outside fit for a log line.
func printable(b []byte) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(b), "?"))
}

// part waits until the other side has closed after our last word, so that closing
// does not reset the connection under it. The wait is bounded by partingTimeout.
func part(s network.MuxedStream) {
	if s.CloseWrite() != nil || s.SetReadDeadline(time.Now().Add(partingTimeout)) != nil {
		return // the connection is gone already
	}
	var scrap [256]byte
	for {
		if _, err := s.Read(scrap[:]); err != nil {
			return
		}
	}
}
