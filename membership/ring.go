package membership

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sync/errgroup"

	"github.com/kevlard/kevlard"
)

// Ring is this node's part in the ring. Its methods may be called from any
// goroutine.
type Ring struct {
	cfg     checked
	p       profile
	addr    string // our advertised host:port
	ml      *memberlist.Memberlist
	table   *table
	rumours *memberlist.TransmitLimitedQueue
	log     *bridge

	inbox chan any      // delegates to the loop; see offer
	dirty chan struct{} // capacity 1: our meta has to be announced
	kick  chan struct{} // capacity 1: join now, don't wait
	taken chan error    // capacity 1: our name is held by another peer

	shown atomic.Bool // the ring has shown us once: a name conflict no longer stops us
	// refusal is why the last round of joins found nobody, nil after one that did.
	refusal atomic.Pointer[JoinRefusal]

	metaMu sync.Mutex
	meta   Meta

	secretsMu sync.Mutex
	keyring   *memberlist.Keyring // locks itself; the mutex orders its changes

	asksMu sync.Mutex
	asks   map[uint64]chan verdict // by nonce; at most one per running join

	peersMu sync.Mutex
	peers   map[kevlard.NodeID]remembered
	unsaved bool // peers.json lacks a change

	// life orders announcing, leaving and shutting down: memberlist panics when
	// asked to leave after its shutdown.
	life   sync.Mutex
	left   atomic.Bool
	closed bool
}

// New checks cfg, binds the ports and starts to answer gossip, so that errors of
// configuration show early. It contacts nobody. Run must follow, if only with a
// cancelled context, to release what New bound.
func New(cfg Config) (*Ring, error) {
	p, err := profileNamed(cfg.Profile)
	if err != nil {
		return nil, err
	}
	return newRing(cfg, p)
}

func newRing(cfg Config, p profile) (*Ring, error) {
	k, err := cfg.check()
	if err != nil {
		return nil, err
	}
	r := &Ring{
		cfg: k, p: p,
		table: newTable(k.Name, k.Meta),
		meta:  k.Meta,
		inbox: make(chan any, inboxSize),
		dirty: make(chan struct{}, 1),
		kick:  make(chan struct{}, 1),
		taken: make(chan error, 1),
		asks:  make(map[uint64]chan verdict),
	}
	r.table.vouch = vouchProbes * p.probe
	r.log = &bridge{
		log: k.Log, ring: k.Ring, lookup: r.table.get, limit: newLimiter(time.Minute), refused: k.Refused,
		first: fmt.Sprintf("Refuting a suspect message (from: %s)", k.Name), refuted: make(chan struct{}, 1),
	}
	r.rumours = &memberlist.TransmitLimitedQueue{
		NumNodes:       func() int { return int(r.table.live.Load()) },
		RetransmitMult: p.config().RetransmitMult,
	}
	if r.peers, err = loadPeers(k.DataDir, time.Now()); err != nil {
		k.Log.Warn("remembered peers are lost", "err", err)
	}
	logger := log.New(r.log, "", 0)
	transport := k.Transport
	if transport == nil {
		if transport, err = r.listen(logger); err != nil {
			return nil, err
		}
	}
	r.addr = r.cfg.advertise.String()
	c := p.config()
	c.Name, c.Label = string(k.Name), k.Ring
	c.BindAddr, c.BindPort = r.cfg.bind.Addr().String(), int(r.cfg.bind.Port())
	c.AdvertiseAddr, c.AdvertisePort = r.cfg.advertise.Addr().String(), int(r.cfg.advertise.Port())
	c.Logger = logger
	c.LogOutput = nil
	if r.keyring, err = memberlist.NewKeyring(k.OldSecrets, k.Secret); err != nil {
		return nil, errors.Join(fmt.Errorf("use the cluster secret: %w", err), transport.Shutdown())
	}
	c.Keyring = r.keyring
	first := newSenior(transport)
	c.Transport = first
	d := delegate{r}
	c.Delegate, c.Events, c.Conflict, c.Alive, c.Ping = d, d, d, d, d
	if r.ml, err = memberlist.Create(c); err != nil {
		return nil, errors.Join(fmt.Errorf("start gossip on %s: %w", r.cfg.bind, err), transport.Shutdown())
	}
	if err := r.begin(first); err != nil {
		return nil, errors.Join(err, r.ml.Shutdown())
	}
	return r, nil
}

// begin puts this life above the former ones. What memberlist was about to say with a lower
// number is replaced.
func (r *Ring) begin(first *senior) error {
	packet, err := suspicion(r.cfg.Ring, r.cfg.Secret, string(r.cfg.Name), string(r.cfg.Name), seniority(time.Now()))
	if err != nil {
		return err
	}
	first.begin(packet, net.UDPAddrFromAddrPort(r.cfg.advertise))
	limit := time.NewTimer(r.p.tcp)
	defer limit.Stop()
	select {
	case <-r.log.refuted:
		// It waits for others to be told, if any are known by now; they are told anyway.
		_ = r.ml.UpdateNode(time.Millisecond)
	case <-limit.C:
		r.cfg.Log.Warn("gossip did not take this node's incarnation; if it has just been restarted, others may show it as dead for a moment")
	}
	return nil
}

// listen binds TCP and UDP, and settles the port where it was 0.
func (r *Ring) listen(logger *log.Logger) (memberlist.NodeAwareTransport, error) {
	b := r.cfg.bind
	tries := 1
	if b.Port() == 0 {
		tries = 10 // the kernel finds a free TCP port; UDP may be taken
	}
	var errs error
	for range tries {
		t, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{b.Addr().String()}, BindPort: int(b.Port()), Logger: logger,
		})
		if err == nil {
			r.cfg.bind = withBoundPort(b, t.GetAutoBindPort())
			if r.cfg.advertise.Port() == 0 {
				r.cfg.advertise = withBoundPort(r.cfg.advertise, t.GetAutoBindPort())
			}
			return t, nil
		}
		errs = err
	}
	fix := "stop what uses it (ss -lntup), or set [ring] bind"
	if strings.Contains(errs.Error(), "cannot assign requested address") { // memberlist keeps the text alone
		fix = "set [ring] bind to an address of this host, or 0.0.0.0 for all"
	}
	return nil, fmt.Errorf("gossip needs TCP and UDP port %d of %s: %w; %s", b.Port(), b.Addr(), errs, fix)
}

// Run joins and rejoins for ever, answers the ring, and remembers its peers,
// until ctx ends; then it shuts the gossip down and returns nil. Call Leave
// before, if others are to see a goodbye and not a death. A newcomer whose name
// another peer holds gets a *NameTakenError. Run ends within the profile's TCP
// timeouts (lan 3 s, wan 10 s, each for dialling and reading; more where DNS
// hangs); memberlist's own goroutines follow by themselves.
func (r *Ring) Run(ctx context.Context) error {
	g, inner := errgroup.WithContext(ctx)
	g.Go(func() error { return r.answer(inner) })
	g.Go(func() error { return r.rejoin(inner) })
	g.Go(func() error { return r.announce(inner) })
	g.Go(func() error { return r.remember(inner) })
	g.Go(func() error {
		select {
		case err := <-r.taken:
			return err
		case <-inner.Done():
			return nil
		}
	})
	err := g.Wait()
	r.life.Lock()
	defer r.life.Unlock()
	r.closed = true
	if cerr := r.ml.Shutdown(); cerr != nil {
		err = errors.Join(err, fmt.Errorf("shut gossip down: %w", cerr))
	}
	return err
}

// Members returns the view: ourselves, the alive, and the dead and left of the
// last 24 hours (at most 1024 of those), sorted by name. The slice is the
// caller's.
func (r *Ring) Members() []Member { return r.table.members() }

// Member returns one member of the view.
func (r *Ring) Member(name kevlard.NodeID) (Member, bool) { return r.table.get(name) }

// Alive returns how many members are alive, ourselves included.
func (r *Ring) Alive() int { return int(r.table.live.Load()) }

// FalseDeaths returns how often a member that was shown as dead came back in the
// same life: it had not died, it or the way to it had stalled.
func (r *Ring) FalseDeaths() uint64 { return r.table.revived.Load() }

// Changed signals that Members changed (round trip times aside). Signals
// coalesce in its one place, so it serves one reader.
func (r *Ring) Changed() <-chan struct{} { return r.table.changed }

// Addr returns the host:port that this node advertises for gossip.
func (r *Ring) Addr() string { return r.addr }

// offer hands something to the loop, or drops it when the inbox is full: every
// message is repeated by its sender or by push/pull.
func (r *Ring) offer(v any) {
	select {
	case r.inbox <- v:
	default:
	}
}

// soon makes the next round of joins come soon.
func (r *Ring) soon() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// answer serves the inbox.
func (r *Ring) answer(ctx context.Context) error {
	var replies errgroup.Group
	replies.SetLimit(maxReplies)
	defer replies.Wait() //nolint:errcheck // the functions return nil
	for {
		var v any
		select {
		case <-ctx.Done():
			return nil
		case v = <-r.inbox:
		}
		if b, ok := v.([]byte); ok {
			m, err := decode(b)
			if err != nil {
				m = badMessage{err}
			}
			v = m
		}
		switch m := v.(type) {
		case claim:
			replies.TryGo(func() error { r.reply(m); return nil })
		case verdict:
			r.hear(m)
		case gone:
			if r.table.farewell(m, time.Now()) {
				r.pass(m)
			}
		case conflict:
			r.log.once("conflict "+m.name+m.other, "one node speaks from two addresses; the second is ignored until the first is dead",
				"node", m.name, "addr", m.have, "ignored", m.other)
		case badMessage:
			r.log.once("bad message", "unreadable ring message; a node runs an incompatible build", "err", m.err)
		}
	}
}

// hear passes a verdict to the join that asked. A verdict without a nonce comes
// from push/pull: another peer holds our name although it is dead.
func (r *Ring) hear(v verdict) {
	if v.Nonce == 0 {
		if v.Shows == showsOther {
			r.refused(v)
		}
		return
	}
	r.asksMu.Lock()
	ch := r.asks[v.Nonce]
	delete(r.asks, v.Nonce)
	r.asksMu.Unlock()
	if ch != nil {
		ch <- v // capacity 1, one verdict per nonce
	}
}

// refused handles the news that another peer holds our name.
func (r *Ring) refused(v verdict) *NameTakenError {
	e := &NameTakenError{Ring: r.cfg.Ring, Name: r.cfg.Name, Peer: v.Peer, Addr: v.Addr, State: v.State}
	if r.shown.Load() {
		r.log.once("taken", "another peer claims our name; we keep it, but parts of the ring may know the other",
			"peer", v.Peer, "addr", v.Addr, "told_by", v.From)
		return e
	}
	select {
	case r.taken <- e:
	default:
	}
	return e
}
