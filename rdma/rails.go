package rdma

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"unicode/utf8"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/rdma/flow"
	"github.com/kevlard/kevlard/rdma/rail"
	"github.com/kevlard/kevlard/rdma/verbs"
)

// askRails is the request for a node's rails.
const askRails = "KVRA\x01"

const (
	railsMagic  = "KVRL"
	maxRailName = 63
	maxRailData = 5 + 1 + flow.MaxRails*(1+maxRailName+1+1+1+2+1+rail.MaxAddresses*17)
)

// encodeRails returns the answer to askRails. Integers are big-endian:
//
//	offset  size  field
//	0       4     "KVRL"
//	4       1     version, 1
//	5       1     number of rails, at most 16; each:
//	        1     n, 1 to 63
//	        n     name of the device, UTF-8
//	        1     port
//	        1     link: 1 InfiniBand, 2 Ethernet
//	        1     MTU, 0 (unknown) to 5
//	        2     LID
//	        1     number of addresses, at most 16; each:
//	              16   GID
//	              1    type: 0 InfiniBand, 1 RoCE v1, 2 RoCE v2
func encodeRails(rails []rail.Rail) []byte {
	out := append([]byte(railsMagic), 1, byte(len(rails)))
	for _, r := range rails {
		name := r.Device[:min(len(r.Device), maxRailName)]
		out = append(append(out, byte(len(name))), name...)
		out = append(out, byte(r.Port), byte(r.Link), byte(r.MTU))
		out = binary.BigEndian.AppendUint16(out, r.LID)
		n := min(len(r.Addresses), rail.MaxAddresses)
		out = append(out, byte(n))
		for _, g := range r.Addresses[:n] {
			gid := g.Addr.As16()
			out = append(append(out, gid[:]...), byte(g.Type))
		}
	}
	return out
}

func decodeRails(b []byte) ([]rail.Rail, error) {
	if len(b) > maxRailData || len(b) < 6 || string(b[:4]) != railsMagic || b[4] != 1 || b[5] > flow.MaxRails {
		return nil, fmt.Errorf("rails: %d bytes that begin with % x: want \"KVRL\", version 1, at most %d rails in %d bytes", len(b), b[:min(len(b), 6)], flow.MaxRails, maxRailData)
	}
	var out []rail.Rail
	rest := b[6:]
	bad := func(what string) ([]rail.Rail, error) {
		return nil, fmt.Errorf("rails at byte %d: %s", len(b)-len(rest), what)
	}
	for range b[5] {
		if len(rest) == 0 || rest[0] == 0 || rest[0] > maxRailName || len(rest) < 1+int(rest[0])+6 {
			return bad("no complete rail")
		}
		n := int(rest[0])
		r := rail.Rail{Device: string(rest[1 : 1+n])}
		if !utf8.ValidString(r.Device) {
			return bad("the name is not UTF-8")
		}
		rest = rest[1+n:]
		r.Port, r.Link, r.MTU = int(rest[0]), verbs.LinkLayer(rest[1]), verbs.MTU(rest[2])
		r.LID = binary.BigEndian.Uint16(rest[3:])
		addresses := int(rest[5])
		if r.Link != verbs.LinkInfiniBand && r.Link != verbs.LinkEthernet || r.MTU > 5 || addresses > rail.MaxAddresses || len(rest) < 6+17*addresses {
			return bad("link, MTU or addresses out of range")
		}
		rest = rest[6:]
		for range addresses {
			g := verbs.GID{Addr: netip.AddrFrom16([16]byte(rest[:16])), Type: verbs.GIDType(rest[16])}
			if g.Type > verbs.GIDRoCEv2 {
				return bad("an address of unknown type")
			}
			r.Addresses = append(r.Addresses, g)
			rest = rest[17:]
		}
		out = append(out, r)
	}
	if len(rest) > 0 {
		return bad("bytes after the last rail")
	}
	return out, nil
}

// own returns this node's rails as they are now. A card that cannot be asked any more has
// no addresses, and takes no other with it.
func (m *Mover) own() ([]rail.Rail, error) {
	var out []rail.Rail
	var bad []error
	for _, d := range m.cfg.Devices {
		r, err := d.Rail()
		if err != nil {
			bad = append(bad, err)
			r = rail.Rail{Device: d.Name(), Link: verbs.LinkEthernet}
		}
		out = append(out, r)
	}
	if len(bad) == len(out) {
		return nil, errors.Join(bad...)
	}
	return out, nil
}

// rails is the answer to askRails.
func (m *Mover) rails() ([]byte, error) {
	own, err := m.own()
	if err != nil {
		return nil, err
	}
	return encodeRails(own), nil
}

// way is how a connection goes.
type way struct {
	rail.Pair
	rail, theirs int // index here and at the peer
}

// match asks a peer for its rails and chooses the way of a slot.
func (m *Mover) match(ctx context.Context, to kevlard.NodeID, index int) (way, error) {
	own, err := m.own()
	if err != nil {
		return way{}, err
	}
	answer, err := m.cfg.Exchange(ctx, to, []byte(askRails))
	if err != nil {
		return way{}, fmt.Errorf("ask %s for its RDMA rails: %w", to, asked(ctx, err))
	}
	theirs, err := decodeRails(answer)
	if err != nil {
		return way{}, fmt.Errorf("ask %s for its RDMA rails: %w", to, err)
	}
	pairs, why := rail.Match(own, theirs, m.cfg.Want)
	if len(pairs) == 0 {
		return way{}, fmt.Errorf("%w: %s", ErrNoRail, why)
	}
	p := pairs[index%len(pairs)]
	w := way{Pair: p, rail: find(own, p.Local), theirs: find(theirs, p.Remote)}
	if w.rail < 0 || w.theirs < 0 {
		return way{}, errors.New("a rail was matched that is not there")
	}
	return w, nil
}

// find returns the index of a rail.
func find(rails []rail.Rail, r rail.Rail) int {
	for i := range rails {
		if rails[i].Device == r.Device && rails[i].Port == r.Port {
			return i
		}
	}
	return -1
}
