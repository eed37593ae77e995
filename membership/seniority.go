package membership

import (
	"math"
	"net"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// memberlist orders what is said of a name by an incarnation number, which begins at 1
// in each life and grows with each change of the meta and each refutation. A node that
// comes back has a lower number than what still travels about its former life: its first
// words are ignored where that is known, and where it is not (at a member that has just
// started itself), a verdict on the former life hits the new one. It finds out, and
// raises its number above, only after it was taken for dead.
//
// So each life begins above all that the former one can have reached: at the time, in
// tenths of a second, since a life says something new at most once per profile.announce,
// and refutes rarely. Only the clock of this one host counts; where it was set back, a
// restart is as it is without this.
//
// memberlist has no call for it. But it refutes a suspicion of itself with a number that
// is one higher, so the first packet that it reads is such a suspicion, by the node
// itself. Until that is there, when memberlist knows of itself, it reads no other.

// seniorSince is where the numbers begin. They end in 2039.
func seniorSince() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

const (
	seniorUnit = 100 * time.Millisecond
	// seniorMax leaves room for a life of months behind the last number.
	seniorMax = math.MaxUint32 - 1<<27
)

// seniority returns the number above which a life that starts now has to begin; 1 if the
// clock does not say.
func seniority(now time.Time) uint32 {
	n := now.Sub(seniorSince()) / seniorUnit
	if n < 1 || n > seniorMax {
		return 1
	}
	return uint32(n)
}

// senior is a transport whose first packet is one of our own.
type senior struct {
	memberlist.NodeAwareTransport
	first chan *memberlist.Packet
	begun atomic.Bool
}

func newSenior(t memberlist.NodeAwareTransport) *senior {
	return &senior{NodeAwareTransport: t, first: make(chan *memberlist.Packet, 1)}
}

// begin gives memberlist its first packet; call it once.
func (s *senior) begin(packet []byte, from net.Addr) {
	s.first <- &memberlist.Packet{Buf: packet, From: from, Timestamp: time.Now()}
}

// PacketCh implements memberlist.Transport. memberlist asks anew for each packet.
func (s *senior) PacketCh() <-chan *memberlist.Packet {
	if s.begun.CompareAndSwap(false, true) {
		return s.first
	}
	return s.NodeAwareTransport.PacketCh()
}

// suspicion returns the packet that says, in memberlist's format, that from suspects name
// at an incarnation.
func suspicion(ring string, secret []byte, name, from string, incarnation uint32) ([]byte, error) {
	const typeSuspect = 3
	return SealPacket(ring, secret, typeSuspect, struct {
		Incarnation uint32
		Node, From  string
	}{incarnation, name, from})
}
