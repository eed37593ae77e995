package membership

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"fmt"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// SealPacket returns a message as a packet that memberlist reads, for what it has no call
// for: the ring's name as a label, then AES-GCM under the secret, bound to the label, over
// kind, memberlist's number of the message, and the message in msgpack.
func SealPacket(ring string, secret []byte, kind byte, message any) ([]byte, error) {
	const (
		typeLabel = 244
		version   = 1 // of the encryption
		nonceSize = 12
	)
	plain := bytes.NewBuffer([]byte{kind})
	if err := codec.NewEncoder(plain, &codec.MsgpackHandle{}).Encode(message); err != nil {
		return nil, fmt.Errorf("encode a gossip message: %w", err)
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, fmt.Errorf("use the cluster secret: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("use the cluster secret: %w", err)
	}
	sealed := make([]byte, 1+nonceSize)
	sealed[0] = version
	rand.Read(sealed[1:]) // never fails: crypto/rand ends the program instead
	sealed = aead.Seal(sealed, sealed[1:], plain.Bytes(), []byte(ring))
	return append(append([]byte{typeLabel, byte(len(ring))}, ring...), sealed...), nil
}
