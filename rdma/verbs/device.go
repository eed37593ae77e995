package verbs

import (
	"fmt"
	"net/netip"
)

// Device is what a card says of itself.
type Device struct {
	Name     string // as ibv_devices shows it: mlx5_0, rxe0
	GUID     uint64
	Firmware string
	Ports    []Port

	MaxRegionBytes uint64 // the longest region
	MaxRegions     int
	MaxQueuePairs  int
	MaxQueues      int
	MaxWork        int // requests that a queue pair's side holds
	MaxCompletions int // entries of a queue
}

// Port is one port of a device as it is now.
type Port struct {
	Number   int // from 1
	State    PortState
	Physical PhysicalState
	Link     LinkLayer
	MTU      MTU // of the path now
	MaxMTU   MTU
	LID      uint16 // InfiniBand: its address in the subnet; 0 where there is no subnet manager
	SMLID    uint16 // InfiniBand: the subnet manager's
	GIDs     []GID  // without the entries that are all zero
}

// GID is one entry of a port's table of addresses.
type GID struct {
	Index     int
	Addr      netip.Addr // 16 bytes; IPv4 addresses are mapped (::ffff:a.b.c.d)
	Type      GIDType
	Interface string // the network interface that it comes from; "" if none or unknown
}

// PortState is the logical state of a port.
type PortState uint8

// The states of a port, by the numbers of the verbs.
const (
	PortNone PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

func (s PortState) String() string {
	return named(int(s), "none", "down", "init", "armed", "active", "active-defer")
}

// PhysicalState is the state of the cable.
type PhysicalState uint8

func (s PhysicalState) String() string {
	return named(int(s), "none", "sleep", "polling", "disabled", "training", "up", "recovering", "test")
}

// LinkLayer is what carries a port's packets.
type LinkLayer uint8

// The link layers, by the numbers of the verbs. Very old drivers leave it
// unspecified, which means InfiniBand.
const (
	LinkUnspecified LinkLayer = iota
	LinkInfiniBand
	LinkEthernet
)

func (l LinkLayer) String() string {
	return named(int(l), "unspecified", "InfiniBand", "Ethernet")
}

// GIDType is the protocol that an entry of the GID table stands for.
type GIDType uint8

// The types of GIDs, by the numbers of the verbs.
const (
	GIDInfiniBand GIDType = iota
	GIDRoCEv1
	GIDRoCEv2
)

func (t GIDType) String() string {
	return named(int(t), "InfiniBand", "RoCE v1", "RoCE v2")
}

// MTU is a path MTU by the numbers of the verbs: 1 is 256 bytes, 5 is 4096.
type MTU uint8

// Bytes returns the payload bytes of a packet, or 0 for an unknown number.
func (m MTU) Bytes() int {
	if m < 1 || m > 5 {
		return 0
	}
	return 128 << m
}

func (m MTU) String() string { return fmt.Sprint(m.Bytes()) }

// named returns the name of n, or the number.
func named(n int, names ...string) string {
	if n < 0 || n >= len(names) {
		return fmt.Sprint(n)
	}
	return names[n]
}
