package membership

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sync/errgroup"

	"github.com/kevlard/kevlard"
)

// JoinResult says how a join went, address by address.
type JoinResult struct {
	Asked    int
	Answered int               // exchanged states and show us as a member
	Errors   map[string]string // by address, of those that did not
	Seen     []kevlard.NodeID  // the nodes that answered, sorted; each is alive in our view too

	reached int // answered a claim, whatever they said
}

// JoinRefusal says why nobody takes this node in, by the address that tells most.
type JoinRefusal struct {
	Asked int    // addresses of the round
	Addr  string // one of them
	Why   string
}

// Refusal returns why the last round of joins found nobody, ok = false if it found
// somebody or there was none.
func (r *Ring) Refusal() (refusal JoinRefusal, ok bool) {
	if p := r.refusal.Load(); p != nil {
		return *p, true
	}
	return JoinRefusal{}, false
}

// refusalOf picks the address that tells most: one that answers and refuses, which
// no waiting mends, before those that do not answer.
func refusalOf(res JoinResult) *JoinRefusal {
	best := -1
	var out *JoinRefusal
	for _, addr := range slices.Sorted(maps.Keys(res.Errors)) {
		why, rank := res.Errors[addr], 0
		if strings.Contains(why, otherSecret) || strings.Contains(why, otherRing) {
			rank = 1
		}
		if rank > best {
			best, out = rank, &JoinRefusal{Asked: res.Asked, Addr: addr, Why: why}
		}
	}
	return out
}

// Join exchanges states with addrs (host:port; the port defaults to our own) and
// verifies that each shows us: memberlist reports success also where the other
// side refused us. It fails when no address answered, with a *NameTakenError
// when another peer holds our name. Run must be running.
func (r *Ring) Join(ctx context.Context, addrs []string) (JoinResult, error) {
	if r.left.Load() {
		return JoinResult{}, errors.New("join: this node has left the ring; restart it to join again")
	}
	if len(addrs) == 0 || len(addrs) > maxJoin {
		return JoinResult{}, fmt.Errorf("join: %d addresses, want 1 to %d", len(addrs), maxJoin)
	}
	seeds := make([]string, len(addrs))
	for i, a := range addrs {
		var err error
		if seeds[i], err = withPort(a, r.cfg.bind.Port()); err != nil {
			return JoinResult{}, err
		}
	}
	res, err := r.joinAll(ctx, seeds)
	if err == nil && res.Answered == 0 {
		var why []string
		for a, e := range res.Errors {
			why = append(why, a+": "+e)
		}
		slices.Sort(why)
		err = fmt.Errorf("join: none of %d addresses took this node in: %s", res.Asked, strings.Join(why, "; "))
	}
	if res.Answered > 0 {
		r.soon() // a second join, to converge (see rejoin)
	}
	return res, err
}

// joinAll joins seeds, a few at a time. Only a held name is its error.
func (r *Ring) joinAll(ctx context.Context, seeds []string) (JoinResult, error) {
	res := JoinResult{Asked: len(seeds), Errors: make(map[string]string)}
	var (
		mu   sync.Mutex
		held error
		g    errgroup.Group
	)
	g.SetLimit(joinsAtOnce)
	for _, addr := range seeds {
		g.Go(func() error {
			v, err := r.joinOne(ctx, addr)
			mu.Lock()
			defer mu.Unlock()
			var taken *NameTakenError
			if v.From != "" {
				res.reached++
			}
			switch {
			case err == nil:
				res.Answered++
				if !slices.Contains(res.Seen, v.From) {
					res.Seen = append(res.Seen, v.From)
				}
			case errors.As(err, &taken):
				held = err
				fallthrough
			default:
				res.Errors[addr] = err.Error()
			}
			return nil
		})
	}
	_ = g.Wait() // the functions return nil
	slices.Sort(res.Seen)
	if held == nil && res.Answered > 0 {
		r.shown.Store(true)
	}
	return res, held
}

// joinOne exchanges states with addr and asks it what it shows for us, again
// and again until it shows us or p.verify has passed.
func (r *Ring) joinOne(ctx context.Context, addr string) (verdict, error) {
	until := time.Now().Add(r.p.verify)
	var last verdict
	heard := false
	for try := 0; ; try++ {
		if ctx.Err() != nil {
			return last, context.Cause(ctx)
		}
		if r.left.Load() {
			return last, errors.New("this node is leaving")
		}
		// Joined again in each try: what we refute in one exchange (an older boot
		// of ours) reaches the seed with the next.
		if _, err := r.ml.Join([]string{addr}); err != nil {
			return last, r.explain(addr, err)
		}
		stream := try >= 2 // UDP had two chances
		v, ok := r.ask(ctx, addr, stream)
		if ok {
			last, heard = v, true
			if stream && try == 2 {
				r.log.once("udp "+addr, "UDP to or from a node is blocked, only TCP works; open the gossip port for both in both directions",
					"addr", addr, "node", v.From)
			}
			switch v.Shows {
			case showsYou:
				if v.From == r.cfg.Name {
					return last, errors.New("that is this node itself")
				}
				if m, known := r.table.get(v.From); known && m.State == StateAlive {
					return v, nil
				}
			case showsOther:
				return v, r.refused(v)
			}
		}
		if time.Now().After(until) {
			return last, notShown(heard, last, r.addr)
		}
		pause(ctx, r.p.ask)
	}
}

func notShown(heard bool, v verdict, us string) error {
	switch {
	case !heard:
		return errors.New("it exchanged states but did not say whether it shows this node; is its daemon overloaded?")
	case v.Shows == showsOld && v.Addr != us:
		return fmt.Errorf("node %s still shows this node at %s (%s); it takes the new address once the old one is dead", v.From, v.Addr, v.State)
	case v.Shows == showsOld:
		return fmt.Errorf("node %s still shows an earlier boot of this node (%s)", v.From, v.State)
	case v.Shows == showsYou:
		return fmt.Errorf("node %s shows this node, but is not alive in our view yet", v.From)
	}
	return fmt.Errorf("node %s does not show this node yet", v.From)
}

// What a node that is there and lets nobody of us in says, as far as it can be told.
const (
	otherSecret = "gossips with a different secret"
	otherRing   = "is it in a ring of another name? compare [ring] name of both nodes"
)

// explain turns memberlist's error list into one line, with its usual cause.
func (r *Ring) explain(addr string, err error) error {
	for u := errors.Unwrap(err); u != nil; u = errors.Unwrap(u) {
		err = u // the first of the list, then what it wraps
	}
	msg := strings.TrimPrefix(strings.Join(strings.Fields(err.Error()), " "), "failed to join "+addr+": ")
	if isSecretMismatch(msg) {
		r.log.secret(addr)
		return fmt.Errorf("the node at %s "+otherSecret+": compare the secret_file of both nodes, and see that this is its gossip port", addr)
	}
	// Which of the two comes depends on what of ours it had read when it closed.
	if strings.HasSuffix(msg, "EOF") || strings.HasSuffix(msg, "connection reset by peer") {
		msg += ": it hung up: " + otherRing
	}
	return errors.New(msg)
}

// ask sends one claim and waits for the verdict.
func (r *Ring) ask(ctx context.Context, addr string, stream bool) (verdict, bool) {
	nonce := rand.Uint64() | 1 // 0 means unasked
	ch := make(chan verdict, 1)
	r.asksMu.Lock()
	r.asks[nonce] = ch
	r.asksMu.Unlock()
	defer func() {
		r.asksMu.Lock()
		delete(r.asks, nonce)
		r.asksMu.Unlock()
	}()
	c := claim{Nonce: nonce, Name: r.cfg.Name, Peer: r.cfg.Meta.Peer, Boot: r.cfg.Meta.Boot, Addr: r.addr, Stream: stream}
	if err := r.send(addr, encode(kindClaim, c), stream); err != nil {
		r.cfg.Log.Debug("asking a node whether it shows us failed", "addr", addr, "err", err)
		return verdict{}, false
	}
	wait := time.NewTimer(r.p.ask)
	defer wait.Stop()
	select {
	case v := <-ch:
		return v, true
	case <-wait.C:
	case <-ctx.Done():
	}
	return verdict{}, false
}

// reply answers a claim the way it came.
func (r *Ring) reply(c claim) {
	r.table.heard(c.Name, c.Boot, time.Now())
	if err := r.send(c.Addr, encode(kindVerdict, r.table.shows(c)), c.Stream); err != nil {
		r.cfg.Log.Debug("answering a claim failed", "addr", c.Addr, "node", c.Name, "err", err)
	}
}

// send sends a user message over UDP, or over TCP if stream.
func (r *Ring) send(addr string, msg []byte, stream bool) error {
	if !stream {
		return r.ml.SendToAddress(memberlist.Address{Addr: addr}, msg)
	}
	a, err := netip.ParseAddrPort(addr)
	if err != nil {
		t, rerr := net.ResolveTCPAddr("tcp", addr)
		if rerr != nil {
			return rerr
		}
		a = t.AddrPort()
	}
	return r.ml.SendReliable(&memberlist.Node{Addr: net.IP(a.Addr().Unmap().AsSlice()), Port: a.Port()}, msg)
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
