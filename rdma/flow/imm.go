package flow

import "fmt"

// Kind is what an immediate says; see the package comment.
type Kind uint8

// The kinds.
const (
	Piece    Kind = 1
	Body     Kind = 2
	Withdraw Kind = 3
	Bye      Kind = 4
	Hello    Kind = 5
	Credit   Kind = 8
	Grant    Kind = 9
	Refuse   Kind = 10
	Parted   Kind = 11
	Gone     Kind = 12
)

// Imm is an immediate.
type Imm uint32

// Say makes an immediate. Only the low 24 bits of arg travel.
func Say(k Kind, arg uint32) Imm { return Imm(uint32(k)<<24 | arg&argMask) }

// Kind returns what it says.
func (i Imm) Kind() Kind { return Kind(i >> 24) }

// Arg returns about which.
func (i Imm) Arg() uint32 { return uint32(i) & argMask }

// String is for errors.
func (i Imm) String() string { return fmt.Sprintf("immediate %d(%d)", i.Kind(), i.Arg()) }

// ring is the accounting of one end of a ring: units used and let go of since the
// beginning.
type ring struct{ used, freed uint32 }

// units returns how many a message of size bytes takes.
func units(size int) uint32 { return uint32((size + UnitBytes - 1) / UnitBytes) }

// next returns where a message of n units begins, and how many it takes with those that
// are left out before it.
func (r *ring) next(n uint32) (at, takes uint32) {
	at = r.used % RingUnits
	if at+n > RingUnits {
		return 0, RingUnits - at + n
	}
	return at, n
}

// take uses the units of a message, if they are free.
func (r *ring) take(n uint32) (at, takes uint32, ok bool) {
	at, takes = r.next(n)
	if n == 0 || n > RingUnits || r.used-r.freed+takes > RingUnits {
		return 0, 0, false
	}
	r.used += takes
	return at, takes, true
}
