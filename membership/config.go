package membership

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"

	"github.com/hashicorp/memberlist"

	"github.com/kevlard/kevlard"
)

// SecretSize is the length of a cluster secret in bytes (AES-256).
const SecretSize = 32

// Config is what a Ring needs.
type Config struct {
	// Name is this node's name, unique in the ring: 1 to 64 of letters, digits
	// and . - _. It belongs to Meta.Peer once the ring has seen it.
	Name kevlard.NodeID
	// Ring labels every packet, so that rings sharing a network (and even a
	// secret) don't merge: 1 to 64 bytes.
	Ring string
	// Bind is the ip:port for TCP and UDP. Port 0 takes a free one (tests).
	Bind string
	// Advertise is the ip:port that others use; empty means Bind. The function
	// Advertise chooses it from the operator's words. Unspecified is refused.
	Advertise string
	// Join lists host:port of other nodes, at best three or more; the port
	// defaults to that of Bind. Addresses that don't answer are tried for ever.
	Join []string
	// Secret is the cluster secret, SecretSize bytes. There is no plain gossip.
	Secret []byte
	// OldSecrets are accepted beside it while the ring's secret is being changed:
	// at most MaxSecrets with it. See SetSecrets.
	OldSecrets [][]byte
	// Profile is "lan" (the default; a death is seen in about 3 s among 8 nodes)
	// or "wan" (about 12 s, for round trips up to some 500 ms).
	Profile string
	// DataDir keeps peers.json, the remembered peers. Empty remembers none.
	DataDir string
	// Meta is what we say of ourselves. Peer, Boot and Role are required.
	Meta Meta
	// Log receives memberlist's lines and ours; nil discards them.
	Log *slog.Logger
	// Refused is told the address of a node that gossips with a different secret, at most
	// once a minute for each host; nil tells nobody. It must not block or call the Ring.
	Refused func(addr, reason string)
	// Transport replaces UDP and TCP in in-process tests (see memtransport).
	Transport memberlist.NodeAwareTransport
}

// checked is a Config whose addresses are parsed.
type checked struct {
	Config
	bind, advertise netip.AddrPort
	meta            []byte
}

// check finds all problems of c at once.
func (c Config) check() (checked, error) {
	var errs []error
	k := checked{Config: c}
	errs = append(errs, checkName(string(c.Name)))
	if n := len(c.Ring); n == 0 || n > maxRing {
		errs = append(errs, fmt.Errorf("ring name %.80q: %d bytes, want 1 to %d", c.Ring, n, maxRing))
	}
	if len(c.Secret) != SecretSize {
		errs = append(errs, fmt.Errorf("cluster secret: %d bytes, want %d; make one with `kevlard keygen`", len(c.Secret), SecretSize))
	}
	if len(c.OldSecrets) > 0 && len(c.Secret) == SecretSize {
		errs = append(errs, CheckSecrets(append([][]byte{c.Secret}, c.OldSecrets...)))
	}
	var err error
	if k.bind, err = netip.ParseAddrPort(c.Bind); err != nil {
		errs = append(errs, fmt.Errorf("ring bind %q: want ip:port: %w", c.Bind, err))
	}
	switch {
	case c.Advertise == "":
		k.advertise = k.bind
	default:
		if k.advertise, err = netip.ParseAddrPort(c.Advertise); err != nil {
			errs = append(errs, fmt.Errorf("ring advertise %q: want ip:port: %w", c.Advertise, err))
		}
	}
	k.bind = netip.AddrPortFrom(k.bind.Addr().Unmap(), k.bind.Port())
	k.advertise = netip.AddrPortFrom(k.advertise.Addr().Unmap(), k.advertise.Port())
	if a := k.advertise.Addr(); a.IsValid() && a.IsUnspecified() {
		errs = append(errs, fmt.Errorf("ring advertise %s: nobody can reach an unspecified address; name an address, interface or CIDR", k.advertise))
	}
	if len(c.Join) > maxJoin {
		errs = append(errs, fmt.Errorf("ring join: %d addresses, want at most %d", len(c.Join), maxJoin))
	}
	k.Join = nil
	for _, a := range c.Join {
		hp, err := withPort(a, k.bind.Port())
		errs = append(errs, err)
		k.Join = append(k.Join, hp)
	}
	if len(k.Meta.Version) > maxVersion {
		k.Meta.Version = k.Meta.Version[:maxVersion]
	}
	if k.meta, err = k.Meta.MarshalBinary(); err != nil {
		errs = append(errs, err)
	}
	if k.Log == nil {
		k.Log = slog.New(slog.DiscardHandler)
	}
	return k, errors.Join(errs...)
}

// withPort returns addr as host:port, with port where it has none.
func withPort(addr string, port uint16) (string, error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		if ip, ipErr := netip.ParseAddr(addr); ipErr == nil {
			return netip.AddrPortFrom(ip, port).String(), nil
		}
		host, p = addr, strconv.Itoa(int(port))
	}
	n, convErr := strconv.ParseUint(p, 10, 16)
	if host == "" || convErr != nil || n == 0 || len(addr) > maxAddr {
		return "", fmt.Errorf("join address %.120q: want host or host:port with a port from 1 to 65535", addr)
	}
	hp := net.JoinHostPort(host, p)
	if _, _, err = net.SplitHostPort(hp); err != nil {
		return "", fmt.Errorf("join address %.120q: want host or host:port: %w", addr, err)
	}
	if err = checkAddr(hp); err != nil {
		return "", fmt.Errorf("join address %.120q: %w", addr, err)
	}
	return hp, nil
}

func withBoundPort(a netip.AddrPort, port int) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr(), uint16(port))
}
