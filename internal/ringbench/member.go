package ringbench

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/memberlist"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/membership"
	"github.com/kevlard/kevlard/membership/memtransport"
)

// member is one member of a measured ring.
type member interface {
	boot() kevlard.BootID
	alive() int          // members it shows as alive, itself included
	falseDeaths() uint64 // members that it showed as dead and that came back in the same life
	meet(addr string)    // exchanges all that both know
	hush()               // drops what it has to pass on
	stop()               // without a goodbye
}

// identity is one life of a member.
type identity struct {
	index int
	addr  string
	boot  string
}

// meta is what a member says of itself, of the size that a daemon's has.
func (id identity) meta() membership.Meta {
	host := netip.MustParseAddrPort(id.addr).Addr()
	return membership.Meta{
		Peer: fmt.Sprintf("12D3KooWbench%039d", id.index), Boot: kevlard.BootID(id.boot), Role: membership.RoleHost, ProtoMin: 1, ProtoMax: 1,
		Mesh: fmt.Sprintf("%s:7947", host), Bulk: fmt.Sprintf("%s:7948", host), Record: 1, Version: "0.1.0",
	}
}

func secret() []byte { return bytes.Repeat([]byte{7}, membership.SecretSize) }

const ringName = "bench"

// ringMember is kevlard's own.
type ringMember struct {
	id     identity
	ring   *membership.Ring
	cancel context.CancelFunc
	all    sync.WaitGroup
}

func startRing(id identity, profile string, t *memtransport.Transport, seeds []string, w *watch) (member, error) {
	ring, err := membership.New(membership.Config{
		Name: kevlard.NodeID(nameOf(id.index)), Ring: ringName, Bind: id.addr, Join: seeds, Secret: secret(), Profile: profile, Meta: id.meta(), Transport: t,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &ringMember{id: id, ring: ring, cancel: cancel}
	m.all.Go(func() {
		_ = ring.Run(ctx) // a taken name is impossible here, and would show as a ring that never settles
	})
	m.all.Go(func() { m.observe(ctx, w) })
	w.started(id.index)
	return m, nil
}

func (m *ringMember) observe(ctx context.Context, w *watch) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.ring.Changed():
		}
		for name, boot := range w.open(m.id.index) {
			if o, ok := m.ring.Member(kevlard.NodeID(name)); !ok || o.State == membership.StateDead {
				w.dead(m.id.index, name, boot)
			}
		}
	}
}

func (m *ringMember) boot() kevlard.BootID { return kevlard.BootID(m.id.boot) }

func (m *ringMember) alive() int { return m.ring.Alive() }

func (m *ringMember) falseDeaths() uint64 { return m.ring.FalseDeaths() }

func (m *ringMember) memberlist() *memberlist.Memberlist {
	return hidden[*memberlist.Memberlist](m.ring, "ml")
}

func (m *ringMember) meet(addr string) {
	_, _ = m.memberlist().Join([]string{addr}) // one that is not there is met later
}

func (m *ringMember) hush() { hush(m.memberlist()) }

func (m *ringMember) stop() {
	m.cancel()
	m.all.Wait()
}

// plainMember is memberlist with its default settings for a LAN.
type plainMember struct {
	id      identity
	ml      *memberlist.Memberlist
	watch   *watch
	state   []byte
	revived atomic.Uint64

	mu   sync.Mutex
	dead map[string]string // boots, by name
}

func startPlain(id identity, t *memtransport.Transport, seeds []string, w *watch) (member, error) {
	m := &plainMember{id: id, watch: w, dead: map[string]string{}}
	meta, err := id.meta().MarshalBinary()
	if err != nil {
		return nil, err
	}
	// The boot is in front, where it is found again without decoding.
	m.state = append(binary.BigEndian.AppendUint16(nil, uint16(len(id.boot))), id.boot...)
	m.state = append(m.state, meta[:max(0, len(meta)-len(m.state))]...)
	at := netip.MustParseAddrPort(id.addr)
	c := memberlist.DefaultLANConfig()
	c.Name, c.Label, c.SecretKey, c.Transport, c.LogOutput = nameOf(id.index), ringName, secret(), t, io.Discard
	c.BindAddr, c.BindPort, c.AdvertiseAddr, c.AdvertisePort = at.Addr().String(), int(at.Port()), at.Addr().String(), int(at.Port())
	c.Delegate, c.Events = m, m
	w.started(id.index)
	if m.ml, err = memberlist.Create(c); err != nil {
		return nil, err
	}
	// Twice, since a single join may leave views incomplete until the next push/pull.
	for range 2 {
		if _, err = m.ml.Join(seeds); err == nil {
			break
		}
	}
	return m, nil // who started first finds nobody; the others find it
}

// bootIn returns the boot in a member's meta.
func bootIn(meta []byte) string {
	if len(meta) < 2 {
		return ""
	}
	n := int(binary.BigEndian.Uint16(meta))
	return string(meta[2:min(len(meta), 2+n)])
}

func (m *plainMember) boot() kevlard.BootID { return kevlard.BootID(m.id.boot) }

func (m *plainMember) alive() int { return m.ml.NumMembers() }

func (m *plainMember) falseDeaths() uint64 { return m.revived.Load() }

func (m *plainMember) meet(addr string) {
	_, _ = m.ml.Join([]string{addr}) // one that is not there is met later
}

func (m *plainMember) hush() { hush(m.ml) }

func (m *plainMember) stop() {
	_ = m.ml.Shutdown() // the transport in memory closes without an error
}

// NotifyLeave implements memberlist.EventDelegate.
func (m *plainMember) NotifyLeave(n *memberlist.Node) {
	boot := bootIn(n.Meta)
	m.mu.Lock()
	m.dead[n.Name] = boot
	m.mu.Unlock()
	m.watch.dead(m.id.index, n.Name, kevlard.BootID(boot))
}

// NotifyJoin implements memberlist.EventDelegate.
func (m *plainMember) NotifyJoin(n *memberlist.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if boot, was := m.dead[n.Name]; was && boot == bootIn(n.Meta) {
		m.revived.Add(1)
	}
	delete(m.dead, n.Name)
}

// NotifyUpdate implements memberlist.EventDelegate.
func (m *plainMember) NotifyUpdate(*memberlist.Node) {}

// NodeMeta implements memberlist.Delegate.
func (m *plainMember) NodeMeta(int) []byte { return m.state }

// NotifyMsg implements memberlist.Delegate.
func (m *plainMember) NotifyMsg([]byte) {}

// GetBroadcasts implements memberlist.Delegate.
func (m *plainMember) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (m *plainMember) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (m *plainMember) MergeRemoteState([]byte, bool) {}
