package membership

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/kevlard/kevlard"
)

// The roles of a node.
const (
	RoleHost    = "host"    // serves stages
	RoleGateway = "gateway" // owns sessions, has no engine
)

// Meta is what a node says about itself in every alive message: little enough
// for 512 bytes, enough to reach it. Everything larger (its record) is pulled
// over the mesh when Record moves.
//
// Layout, version 1; integers are big-endian, strings are one length byte and
// printable ASCII:
//
//	 0      version, 1
//	 1      role: 0 host, 1 gateway
//	 2      flags: bit 0 leaving, bit 1 the API speaks TLS; other bits are ignored
//	 3      lowest mesh protocol version
//	 4      highest mesh protocol version
//	 5..12  record version
//	13..    peer ID (1..64), boot ID (1..32), mesh, bulk and API
//	        host:port (0..112 each), version (0..32)
//
// Bytes after that are ignored: later builds append. A change that old readers
// must not misread takes a new version byte.
type Meta struct {
	Peer     string         // libp2p peer ID in text
	Boot     kevlard.BootID // new each start
	Role     string         // RoleHost or RoleGateway
	ProtoMin uint8          // lowest mesh protocol version spoken
	ProtoMax uint8          // highest mesh protocol version spoken
	Mesh     string         // host:port of the mesh listener
	Bulk     string         // host:port of the bulk listener
	API      string         // host:port of the HTTP API
	APITLS   bool           // the API speaks HTTPS
	Record   uint64         // version of the node record
	Version  string         // of the build
	Leaving  bool           // set just before the node leaves
}

const (
	metaVersion = 1
	metaFixed   = 13

	flagLeaving = 1 << 0
	flagAPITLS  = 1 << 1
)

// metaStrings lists the strings in wire order with their limits.
func metaStrings(peer, boot, mesh, bulk, api, version *string) [6]metaString {
	return [6]metaString{
		{"peer", peer, 1, maxPeer},
		{"boot", boot, 1, maxBoot},
		{"mesh", mesh, 0, maxAddr},
		{"bulk", bulk, 0, maxAddr},
		{"api", api, 0, maxAddr},
		{"version", version, 0, maxVersion},
	}
}

type metaString struct {
	name     string
	s        *string
	min, max int
}

func (f metaString) check() error {
	if n := len(*f.s); n < f.min || n > f.max {
		return fmt.Errorf("meta %s: %d bytes, want %d to %d", f.name, n, f.min, f.max)
	}
	for i := range len(*f.s) {
		if c := (*f.s)[i]; c <= ' ' || c > '~' {
			return fmt.Errorf("meta %s: byte %d is %#x, want printable ASCII without spaces", f.name, i, c)
		}
	}
	return nil
}

// MarshalBinary encodes m; it fails, naming the field, where a limit of the
// layout is exceeded.
func (m Meta) MarshalBinary() ([]byte, error) {
	b := make([]byte, metaFixed, metaMax)
	b[0] = metaVersion
	switch m.Role {
	case RoleHost:
	case RoleGateway:
		b[1] = 1
	default:
		return nil, fmt.Errorf("meta role %q: want %s or %s", m.Role, RoleHost, RoleGateway)
	}
	if m.Leaving {
		b[2] |= flagLeaving
	}
	if m.APITLS {
		b[2] |= flagAPITLS
	}
	if m.ProtoMin > m.ProtoMax {
		return nil, fmt.Errorf("meta protocol range %d..%d is empty", m.ProtoMin, m.ProtoMax)
	}
	b[3], b[4] = m.ProtoMin, m.ProtoMax
	binary.BigEndian.PutUint64(b[5:metaFixed], m.Record)
	boot := string(m.Boot)
	for _, f := range metaStrings(&m.Peer, &boot, &m.Mesh, &m.Bulk, &m.API, &m.Version) {
		if err := f.check(); err != nil {
			return nil, err
		}
		b = append(b, byte(len(*f.s)))
		b = append(b, *f.s...)
	}
	return b, nil
}

// UnmarshalBinary decodes b into m. On error m is left as it was.
func (m *Meta) UnmarshalBinary(b []byte) error {
	if len(b) < metaFixed {
		return fmt.Errorf("meta: %d bytes, want at least %d", len(b), metaFixed)
	}
	if len(b) > metaMax {
		return fmt.Errorf("meta: %d bytes, want at most %d", len(b), metaMax)
	}
	if b[0] != metaVersion {
		return fmt.Errorf("meta version %d: this build reads %d; upgrade the older node", b[0], metaVersion)
	}
	var v Meta
	switch b[1] {
	case 0:
		v.Role = RoleHost
	case 1:
		v.Role = RoleGateway
	default:
		return fmt.Errorf("meta role %d: want 0 (host) or 1 (gateway)", b[1])
	}
	v.Leaving, v.APITLS = b[2]&flagLeaving != 0, b[2]&flagAPITLS != 0
	v.ProtoMin, v.ProtoMax = b[3], b[4]
	if v.ProtoMin > v.ProtoMax {
		return fmt.Errorf("meta protocol range %d..%d is empty", v.ProtoMin, v.ProtoMax)
	}
	v.Record = binary.BigEndian.Uint64(b[5:metaFixed])
	var boot string
	rest := b[metaFixed:]
	for _, f := range metaStrings(&v.Peer, &boot, &v.Mesh, &v.Bulk, &v.API, &v.Version) {
		if len(rest) == 0 || len(rest) < 1+int(rest[0]) {
			return fmt.Errorf("meta %s: cut short at byte %d", f.name, len(b)-len(rest))
		}
		n := 1 + int(rest[0])
		*f.s = string(rest[1:n])
		if err := f.check(); err != nil {
			return err
		}
		rest = rest[n:]
	}
	v.Boot = kevlard.BootID(boot)
	*m = v
	return nil
}

// checkName says whether s may name a node.
func checkName(s string) error {
	if s == "" || len(s) > maxName {
		return fmt.Errorf("node name %.80q: %d bytes, want 1 to %d", s, len(s), maxName)
	}
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || c != '.' && c != '-' && c != '_') {
			return fmt.Errorf("node name %q: want letters, digits, and after the first also . - _", s)
		}
	}
	return nil
}

var errNoMeta = errors.New("its alive message carries no meta")

// decodeMeta reads the meta of an alive message (which can come empty:
// memberlist#255).
func decodeMeta(b []byte) (Meta, error) {
	if len(b) == 0 {
		return Meta{}, errNoMeta
	}
	var m Meta
	err := m.UnmarshalBinary(b)
	return m, err
}
