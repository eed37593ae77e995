package main

import (
	"context"
	"net/netip"
	"strings"
	"sync"

	"github.com/kevlard/kevlard/daemon/report"
)

// checkPeers tries each peer: TCP to its gossip and mesh address, a UDP ping there
// and back, and a UDP ping that the peer sends to this node's daemon, which shows
// the other direction.
func (d *doctor) checkPeers(ctx context.Context) []finding {
	const check = "peers"
	if d.status == nil {
		return nil
	}
	_, self, ok := d.self()
	if !ok {
		return one(check, statusFail, "see its log: journalctl -u kevlard", "the daemon does not list itself in its ring")
	}
	var gossip *pinger
	if d.secret != nil {
		p, err := d.probe.gossip(d.members.Ring, d.secret, self.Addr())
		if err != nil {
			return one(check, statusFail, "", "%v", err)
		}
		gossip = &p
	}
	var peers []report.Member
	for _, m := range d.members.Nodes {
		if m.Name != d.members.Self && m.State != "left" {
			peers = append(peers, m)
		}
	}
	if len(peers) == 0 {
		return one(check, statusWarn, "name some members in [ring] join", "this node is alone in its ring")
	}
	found := make([][]finding, len(peers))
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxPeersAtOnce)
	for i, m := range peers {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			found[i] = d.checkPeer(ctx, m, self, gossip)
		})
	}
	wg.Wait()
	var out []finding
	for _, f := range found {
		out = append(out, f...)
	}
	return out
}

// checkPeer tries one peer.
func (d *doctor) checkPeer(ctx context.Context, m report.Member, self netip.AddrPort, gossip *pinger) []finding {
	const check = "peers"
	if m.State == "dead" {
		return one(check, statusWarn, "start it, or kevlard force-leave "+m.Name, "%s is dead and was not tried", m.Name)
	}
	var out []finding
	bad := func(fix, format string, args ...any) {
		out = append(out, one(check, statusFail, fix, format, args...)...)
	}
	var tried []string
	for _, addr := range []string{m.Addr, m.MeshAddr, m.BulkAddr} {
		if addr == "" {
			continue // it takes no KV
		}
		tried = append(tried, "TCP to "+addr)
		if err := d.probe.dial(ctx, addr); err != nil {
			bad("open TCP "+port(addr)+" on "+m.Name+" for this host", "%s: TCP to %s: %v", m.Name, addr, err)
		}
	}
	addr, err := unmapped(m.Addr)
	switch {
	case err != nil:
		bad("", "%s: gossip address: %v", m.Name, err)
	case gossip == nil: // the secret's own finding says so
	default:
		tried = append(tried, "UDP both ways")
		switch err := gossip.ping(ctx, m.Name, addr); {
		case err != nil:
			// Without this way the other cannot be tried.
			bad("open UDP "+port(m.Addr)+" between both hosts, in both directions", "%s: UDP to %s and back: %v", m.Name, m.Addr, err)
		default:
			if err := gossip.pingBy(ctx, addr, d.members.Self, self); err != nil {
				bad("open UDP "+port(self.String())+" on this host for "+m.Name, "%s: UDP from there to %s: %v", m.Name, self, err)
			}
		}
	}
	if len(out) == 0 {
		return one(check, statusOK, "", "%s: %s", m.Name, strings.Join(tried, ", "))
	}
	return out
}

// port returns the port of an address.
func port(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }
