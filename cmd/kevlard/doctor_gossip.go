package main

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"time"

	"github.com/kevlard/kevlard/membership"
)

// memberlist's packets, as far as the doctor speaks them: a label, then AES-GCM over
// a type byte and a msgpack map. (memberlist has no call for what is done here: to
// ask one member to ping another, it must have failed to ping that one itself.)
const (
	packetPing         = 0
	packetIndirectPing = 1
	packetAck          = 2
	packetCompound     = 7
	packetCRC          = 12
	packetLabel        = 244
	packetVersion      = 1 // of the encryption
	packetNonce        = 12
	// maxPacket is what memberlist reads at once; longer packets are cut.
	maxPacket = 65536
)

// gossipTries is how often a ping is sent before it counts as lost: UDP may lose one.
const gossipTries = 3

// errNoAnswer says that a ping was not answered, however often it was sent.
var errNoAnswer = errors.New("no answer")

// gossiper pings members of a ring over UDP without being one.
type gossiper struct {
	label  string // the ring's name, of 1 to 63 bytes
	secret []byte
	aead   cipher.AEAD // under the secret
	from   netip.Addr  // the local address to send from
	wait   time.Duration
}

func newGossiper(ring string, secret []byte, from netip.Addr, wait time.Duration) (*gossiper, error) {
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, fmt.Errorf("use the cluster secret: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("use the cluster secret: %w", err)
	}
	return &gossiper{label: ring, secret: secret, aead: aead, from: from, wait: wait}, nil
}

// gossipPing is a ping, or with a Target one that its receiver is to send there.
type gossipPing struct {
	SeqNo  uint32
	Target []byte `codec:",omitempty"`
	Port   uint16 `codec:",omitempty"`
	Node   string
}

// ping sends a ping to the member called name at addr and waits for the answer,
// which comes to the same socket. It fails with errNoAnswer.
func (g *gossiper) ping(ctx context.Context, name string, addr netip.AddrPort) error {
	return g.ask(ctx, addr, packetPing, gossipPing{Node: name})
}

// pingBy asks the member at addr to ping the one called name at target.
func (g *gossiper) pingBy(ctx context.Context, addr netip.AddrPort, name string, target netip.AddrPort) error {
	return g.ask(ctx, addr, packetIndirectPing, gossipPing{Node: name, Target: target.Addr().AsSlice(), Port: target.Port()})
}

// ask sends a message until its acknowledgement arrives.
func (g *gossiper) ask(ctx context.Context, addr netip.AddrPort, kind byte, p gossipPing) error {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(g.from, 0)))
	if err != nil {
		return fmt.Errorf("open a UDP socket on %s: %w", g.from, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	buf := make([]byte, maxPacket)
	for try := range gossipTries {
		p.SeqNo = uint32(try) + 1
		packet, err := g.seal(kind, p)
		if err != nil {
			return err
		}
		if _, err := conn.WriteToUDPAddrPort(packet, addr); err != nil {
			return fmt.Errorf("send UDP to %s: %w", addr, err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(g.wait)); err != nil {
			return fmt.Errorf("wait for %s: %w", addr, err)
		}
		for {
			n, _, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				break // the deadline
			}
			if g.acknowledges(buf[:n]) {
				return nil
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return errNoAnswer
}

// seal makes a packet.
func (g *gossiper) seal(kind byte, p gossipPing) ([]byte, error) {
	return membership.SealPacket(g.label, g.secret, kind, &p)
}

// header returns the label in front of each packet: a magic byte, its length, itself.
func (g *gossiper) header() []byte {
	return append([]byte{packetLabel, byte(len(g.label))}, g.label...)
}

// acknowledges reports whether a packet is an acknowledgement under our secret.
func (g *gossiper) acknowledges(packet []byte) bool {
	sealed, ok := bytes.CutPrefix(packet, g.header())
	if !ok || len(sealed) < 1+packetNonce || sealed[0] != packetVersion {
		return false
	}
	plain, err := g.aead.Open(nil, sealed[1:1+packetNonce], sealed[1+packetNonce:], []byte(g.label))
	if err != nil {
		return false
	}
	if len(plain) >= 5 && plain[0] == packetCRC && binary.BigEndian.Uint32(plain[1:]) == crc32.ChecksumIEEE(plain[5:]) {
		plain = plain[5:]
	}
	for _, part := range packetParts(plain) {
		if len(part) > 0 && part[0] == packetAck {
			return true // each socket asks one question
		}
	}
	return false
}

// packetParts splits a compound message, in which news of the ring ride along: a
// count, the lengths, the parts. Any other message is its own only part.
func packetParts(plain []byte) [][]byte {
	if len(plain) < 2 || plain[0] != packetCompound {
		return [][]byte{plain}
	}
	count := int(plain[1])
	lengths := plain[2:]
	if len(lengths) < 2*count {
		return nil
	}
	rest := lengths[2*count:]
	var parts [][]byte
	for i := range count {
		n := int(binary.BigEndian.Uint16(lengths[2*i:]))
		if n > len(rest) {
			break
		}
		parts = append(parts, rest[:n])
		rest = rest[n:]
	}
	return parts
}
