package tcp

import (
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	libp2ptls "github.com/libp2p/go-libp2p/p2p/security/tls"
)

// identity proves the node's peer ID in TLS 1.3, as the mesh does.
type identity struct{ tls *libp2ptls.Identity }

func newIdentity(key crypto.PrivKey) (*identity, error) {
	id, err := libp2ptls.NewIdentity(key)
	if err != nil {
		return nil, fmt.Errorf("make TLS identity: %w", err)
	}
	return &identity{id}, nil
}

// client returns the settings for one connection to the peer with this ID.
func (i *identity) client(id string) (*tls.Config, error) {
	want, err := peer.Decode(id)
	if err != nil {
		return nil, fmt.Errorf("peer ID %q: %w", id, err)
	}
	conf, _ := i.tls.ConfigForPeer(want)
	return whole(conf), nil
}

// server returns the settings for one accepted connection and who it turned out to
// be; that may be called after the handshake.
func (i *identity) server() (*tls.Config, func() (string, error)) {
	conf, key := i.tls.ConfigForPeer("")
	return whole(conf), func() (string, error) {
		k, ok := <-key // closed by the handshake
		if !ok {
			return "", errors.New("the peer showed no key")
		}
		id, err := peer.IDFromPublicKey(k)
		return id.String(), err
	}
}

// whole makes all records full from the first on: what is sent here is bulk.
func whole(c *tls.Config) *tls.Config {
	c.DynamicRecordSizingDisabled = true
	return c
}
