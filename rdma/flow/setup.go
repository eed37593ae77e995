package flow

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Endpoint is one end of a queue pair, and the memory that the other end may write.
type Endpoint struct {
	Ethernet bool     // RoCE: addressed by GID; else InfiniBand: by LID, and by GID when Routed
	Routed   bool     // InfiniBand with a global route
	MTU      uint8    // largest path MTU, as verbs count: 1 is 256 bytes, 5 is 4096
	LID      uint16   // InfiniBand's local address
	GID      [16]byte // global address
	QPN      uint32   // queue pair number, 24 bits
	PSN      uint32   // first packet sequence number, 24 bits

	Addr uint64 // of the memory that the other end may write: a ring, or slots for grants
	RKey uint32 // its key
	Size uint32 // its bytes
}

// Setup is what both ends tell each other over the mesh before they connect: one
// exchange, opened by the one that sends pieces.
type Setup struct {
	Answer      bool
	Summed      bool     // bodies carry checksums
	Rail        uint8    // of the answering end
	Slot        uint8    // index of the connection, as in package tcp
	Number      uint64   // grows within an incarnation: an older one replaces nothing
	Incarnation [16]byte // of the mover that opens
	Endpoint    Endpoint
	// To and ToType are the address of the answering end that was chosen, as its GID table
	// has it.
	To     [16]byte
	ToType uint8
}

const (
	setupMagic   = "KVRD"
	setupVersion = 1
	// SetupBytes is the length of a Setup.
	SetupBytes = 4 + 1 + 1 + 1 + 1 + 8 + 16 + endpointBytes + 16 + 1

	endpointBytes = 1 + 1 + 2 + 16 + 4 + 4 + 8 + 4 + 4

	flagAnswer, flagSummed   = 1, 2
	flagEthernet, flagRouted = 1, 2

	// MaxSlots bounds the connections to a peer, MaxRails the devices of a node.
	MaxSlots = 16
	MaxRails = 16

	maxMTU  = 5
	maxType = 2
)

// Encode returns the wire form. Integers are big-endian:
//
//	offset  size  field
//	0       4     "KVRD"
//	4       1     version, 1
//	5       1     flags: 1 answer, 2 bodies carry checksums
//	6       1     rail
//	7       1     slot
//	8       8     number
//	16      16    incarnation
//	32      1     flags: 1 Ethernet, 2 routed
//	33      1     MTU, 1 to 5
//	34      2     LID
//	36      16    GID
//	52      4     queue pair number
//	56      4     first packet sequence number
//	60      8     address of the memory
//	68      4     its key
//	72      4     its size
//	76      16    GID of the answering end that was chosen
//	92      1     its type: 0 InfiniBand, 1 RoCE v1, 2 RoCE v2
func (s Setup) Encode() []byte {
	flag := func(b bool, f byte) byte {
		if b {
			return f
		}
		return 0
	}
	e := s.Endpoint
	out := append(make([]byte, 0, SetupBytes), setupMagic...)
	out = append(out, setupVersion, flag(s.Answer, flagAnswer)|flag(s.Summed, flagSummed), s.Rail, s.Slot)
	out = binary.BigEndian.AppendUint64(out, s.Number)
	out = append(out, s.Incarnation[:]...)
	out = append(out, flag(e.Ethernet, flagEthernet)|flag(e.Routed, flagRouted), e.MTU)
	out = binary.BigEndian.AppendUint16(out, e.LID)
	out = append(out, e.GID[:]...)
	out = binary.BigEndian.AppendUint32(out, e.QPN)
	out = binary.BigEndian.AppendUint32(out, e.PSN)
	out = binary.BigEndian.AppendUint64(out, e.Addr)
	out = binary.BigEndian.AppendUint32(out, e.RKey)
	out = binary.BigEndian.AppendUint32(out, e.Size)
	return append(append(out, s.To[:]...), s.ToType)
}

// DecodeSetup reads a Setup. answer says which of the two is expected.
func DecodeSetup(b []byte, answer bool) (Setup, error) {
	if len(b) < 5 || string(b[:4]) != setupMagic {
		return Setup{}, errors.New("RDMA set-up at byte 0: no magic \"KVRD\"")
	}
	if b[4] != setupVersion {
		return Setup{}, fmt.Errorf("RDMA set-up at byte 4: the peer speaks version %d, this node version %d: run the same release of kevlard on both", b[4], setupVersion)
	}
	if len(b) != SetupBytes {
		return Setup{}, fmt.Errorf("RDMA set-up: %d bytes, want %d", len(b), SetupBytes)
	}
	if b[5] > flagAnswer|flagSummed || b[32] > flagEthernet|flagRouted {
		return Setup{}, fmt.Errorf("RDMA set-up: flags %#x at byte 5 and %#x at byte 32, want at most 0x3", b[5], b[32])
	}
	s := Setup{
		Answer: b[5]&flagAnswer != 0, Summed: b[5]&flagSummed != 0, Rail: b[6], Slot: b[7],
		Number: binary.BigEndian.Uint64(b[8:]), Incarnation: [16]byte(b[16:32]), To: [16]byte(b[76:92]), ToType: b[92],
		Endpoint: Endpoint{
			Ethernet: b[32]&flagEthernet != 0, Routed: b[32]&flagRouted != 0, MTU: b[33],
			LID: binary.BigEndian.Uint16(b[34:]), GID: [16]byte(b[36:52]),
			QPN: binary.BigEndian.Uint32(b[52:]), PSN: binary.BigEndian.Uint32(b[56:]),
			Addr: binary.BigEndian.Uint64(b[60:]), RKey: binary.BigEndian.Uint32(b[68:]), Size: binary.BigEndian.Uint32(b[72:]),
		},
	}
	return s, s.check(answer)
}

func (s Setup) check(answer bool) error {
	e := s.Endpoint
	size := uint32(Window * GrantBytes)
	if answer {
		size = RingBytes
	}
	switch {
	case s.Answer != answer:
		return fmt.Errorf("RDMA set-up at byte 5: answer is %t, want %t", s.Answer, answer)
	case s.Rail >= MaxRails || s.Slot >= MaxSlots:
		return fmt.Errorf("RDMA set-up at byte 6: rail %d and slot %d, want less than %d and %d", s.Rail, s.Slot, MaxRails, MaxSlots)
	case e.MTU < 1 || e.MTU > maxMTU:
		return fmt.Errorf("RDMA set-up at byte 33: MTU %d, want 1 to %d", e.MTU, maxMTU)
	case e.QPN > argMask || e.PSN > argMask:
		return fmt.Errorf("RDMA set-up at byte 52: queue pair %d and packet number %d, want 24 bits", e.QPN, e.PSN)
	case (e.Ethernet || e.Routed) && e.GID == [16]byte{}:
		return errors.New("RDMA set-up at byte 36: no GID")
	case s.ToType > maxType:
		return fmt.Errorf("RDMA set-up at byte 92: GID of type %d, want 0 to %d", s.ToType, maxType)
	case e.Size != size:
		return fmt.Errorf("RDMA set-up at byte 72: memory of %d bytes, want %d", e.Size, size)
	case e.Addr > ^uint64(0)-uint64(e.Size):
		return fmt.Errorf("RDMA set-up at byte 60: memory at %#x does not end", e.Addr)
	}
	return nil
}

// Place is where a body is to be written.
type Place struct {
	Addr uint64
	RKey uint32
	Size uint32
}

// PutPlace writes the form of a grant's slot: the ask's number, key, address and size,
// and zeros.
func PutPlace(b []byte, number uint32, p Place) {
	binary.BigEndian.PutUint32(b, number)
	binary.BigEndian.PutUint32(b[4:], p.RKey)
	binary.BigEndian.PutUint64(b[8:], p.Addr)
	binary.BigEndian.PutUint32(b[16:], p.Size)
	clear(b[20:GrantBytes])
}

// DecodePlace reads the grant of an ask for size bytes.
func DecodePlace(b []byte, number, size uint32) (Place, error) {
	if len(b) != GrantBytes {
		return Place{}, fmt.Errorf("grant: %d bytes, want %d", len(b), GrantBytes)
	}
	p := Place{Addr: binary.BigEndian.Uint64(b[8:]), RKey: binary.BigEndian.Uint32(b[4:]), Size: binary.BigEndian.Uint32(b[16:])}
	if n := binary.BigEndian.Uint32(b); n != number || p.Size != size || p.Addr > ^uint64(0)-uint64(size) {
		return Place{}, fmt.Errorf("grant of ask %d: it is for ask %d, with %d bytes at %#x: want %d bytes", number, n, p.Size, p.Addr, size)
	}
	return p, nil
}
