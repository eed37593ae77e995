package daemon

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"

	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/kvstream/tcp"
	"github.com/kevlard/kevlard/mesh"
)

// methodBulkKey is the mesh call that asks a node for the key of plain bulk
// connections with it: 32 bytes.
const methodBulkKey = "bulk-key"

// bulkLabel keeps a key of plain connections from being valid for anything else.
const bulkLabel = "kevlard bulk pair 1\x00"

// newTCP returns the bulk transport that Deps.Mover is by default. Who may use it is
// the mesh's say: with TLS a peer proves the ID that the mesh admitted; a plain
// connection is proved by a key that the two nodes agreed on over the mesh.
func (d *Daemon) newTCP(key crypto.PrivKey) func(mover.Handler) (mover.Mover, string, error) {
	return func(h mover.Handler) (mover.Mover, string, error) {
		m, err := tcp.New(tcp.Config{
			Self: d.cfg.Name, Listen: d.cfg.BulkListen, Plain: d.cfg.BulkPlain,
			Unsummed: d.cfg.BulkPlain, // rows carry sums of their own, which the keeper checks
			Key:      key, Pacer: d.transports.pacer, Options: conns.Options{Log: d.log},
			Resolve: d.bulkPeer, Admitted: d.mesh.Admitted, Secret: d.bulkSecret, Handler: h,
		})
		if err != nil {
			return nil, "", err
		}
		d.transports.forget = m.Forget
		return m, m.Addr(), nil
	}
}

// linked returns a peer to which the mesh is connected.
func (d *Daemon) linked(n kevlard.NodeID) (mesh.Peer, bool) {
	for _, p := range d.mesh.Peers() {
		if p.Peer.Node == n && p.Connected {
			return p.Peer, true
		}
	}
	return mesh.Peer{}, false
}

// bulkPeer finds a node's bulk address in the ring. Only nodes that the mesh reaches
// are dialled.
func (d *Daemon) bulkPeer(n kevlard.NodeID) (tcp.Peer, bool) {
	p, ok := d.linked(n)
	if !ok {
		return tcp.Peer{}, false
	}
	for _, m := range d.ring.Members() {
		if m.Name == n && m.Meta.Peer == p.ID && m.Meta.Bulk != "" {
			return tcp.Peer{ID: p.ID, Addr: m.Meta.Bulk}, true
		}
	}
	return tcp.Peer{}, false
}

// bulkSecret returns the key of plain connections with a peer. The node whose name is
// less makes it, from what nobody else knows and the peer's ID, and tells it to that
// peer alone.
func (d *Daemon) bulkSecret(ctx context.Context, n kevlard.NodeID) ([]byte, error) {
	if d.cfg.Name > n {
		key, err := d.mesh.Call(ctx, n, methodBulkKey, nil)
		if err != nil {
			return nil, fmt.Errorf("ask node %s for the key of bulk connections: %w", n, err)
		}
		return key, nil
	}
	p, ok := d.linked(n)
	if !ok {
		return nil, fmt.Errorf("%w: %s", mesh.ErrNotConnected, n)
	}
	return d.bulkKey(p.ID), nil
}

// bulkKey derives the key for a peer.
func (d *Daemon) bulkKey(peerID string) []byte {
	h := hmac.New(sha256.New, d.bulkRoot[:])
	h.Write([]byte(bulkLabel))
	h.Write([]byte(peerID))
	return h.Sum(nil)
}

// newRoot makes a secret of this life from which keys are derived.
func newRoot() (root [32]byte) {
	rand.Read(root[:]) // crypto/rand ends the process if it cannot
	return root
}
