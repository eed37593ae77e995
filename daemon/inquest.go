package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/membership"
	"github.com/kevlard/kevlard/mesh"
	"github.com/kevlard/kevlard/node"
)

// linkCall is the body of methodLink, in JSON: what does a node see of a boot? A linkAnswer
// answers it.
type linkCall struct {
	Node kevlard.NodeID `json:"node"`
	Boot kevlard.BootID `json:"boot"`
}

type linkAnswer struct {
	Connected bool `json:"connected"`
	Lost      bool `json:"lost"`
}

// inquire looks, until ctx ends, after each peer whose connections broke: the ring is told
// of those that are gone, which lets their stages be adopted sooner than probes do.
func (d *Daemon) inquire(ctx context.Context) error {
	var all errgroup.Group
	all.SetLimit(maxInquests)
	defer all.Wait() //nolint:errcheck // the functions return nil
	var mu sync.Mutex
	open := map[mesh.Peer]bool{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case p := <-d.suspects:
			mu.Lock()
			again := open[p]
			open[p] = true
			mu.Unlock()
			if again {
				continue
			}
			ran := all.TryGo(func() error {
				d.inquest(ctx, p)
				mu.Lock()
				defer mu.Unlock()
				delete(open, p)
				return nil
			})
			if !ran { // the ring finds out
				mu.Lock()
				delete(open, p)
				mu.Unlock()
			}
		}
	}
}

// suspect begins an inquest. It never blocks.
func (d *Daemon) suspect(p mesh.Peer) {
	select {
	case d.suspects <- p:
	default: // the ring finds out
	}
}

// inquest finds out whether a boot is gone.
func (d *Daemon) inquest(ctx context.Context, p mesh.Peer) {
	patience := d.ring.Patience()
	q := membership.NewInquest(time.Now(), patience)
	for ctx.Err() == nil {
		m, ok := d.ring.Member(p.Node)
		if !ok || m.State != membership.StateAlive || m.Meta.Boot != p.Boot {
			return // the ring knows better
		}
		next := time.Now().Add(patience / 5)
		step := q.Look(time.Now(), d.look(ctx, m, patience/2))
		asked := 0
		if step == membership.Ask {
			others, said := d.askLinks(ctx, p, patience)
			step, asked = q.Hear(others, said), len(said)
		}
		switch {
		case step == membership.Dismiss:
			return
		case step == membership.Bury:
			if d.ring.Bury(p.Node, p.Boot) {
				d.report(node.Report{Type: "process-gone", Node: p.Node, Cause: "refused", Detail: fmt.Sprintf("boot %s: its ports refuse connections; of others, %d were asked and do not reach it", p.Boot, asked)})
			}
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(next)):
		}
	}
}

// look tries a member's ports for mesh and gossip.
func (d *Daemon) look(ctx context.Context, m membership.Member, within time.Duration) membership.Sign {
	sign := membership.SignRefused
	for _, addr := range []string{m.Meta.Mesh, m.Addr} {
		conn, err := (&net.Dialer{Timeout: within}).DialContext(ctx, "tcp", addr)
		switch {
		case err == nil:
			_ = conn.Close() // it was only to see who is there
			return membership.SignAlive
		case !errors.Is(err, syscall.ECONNREFUSED):
			sign = membership.SignSilent
		}
	}
	if answers, err := d.ring.Ping(m); err == nil && answers {
		return membership.SignAlive
	}
	return sign
}

// askLinks asks some others what they see of a boot; others is how many there are.
func (d *Daemon) askLinks(ctx context.Context, p mesh.Peer, within time.Duration) (others int, said []membership.Testimony) {
	var ask []kevlard.NodeID
	for _, m := range d.ring.Members() {
		if m.State == membership.StateAlive && m.Name != p.Node && m.Name != d.cfg.Name {
			ask = append(ask, m.Name)
		}
	}
	others = len(ask)
	rand.Shuffle(others, func(i, j int) { ask[i], ask[j] = ask[j], ask[i] })
	body, err := json.Marshal(linkCall{p.Node, p.Boot})
	if err != nil {
		panic(fmt.Sprintf("daemon: encode a link call: %v", err)) // strings
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var mu sync.Mutex
	var calls sync.WaitGroup
	for _, n := range ask[:min(others, maxTestimonies)] {
		calls.Go(func() {
			var a linkAnswer
			b, err := d.mesh.Call(ctx, n, methodLink, body)
			if err != nil || readCall("a link answer", b, &a) != nil {
				return // it says nothing: it may be as dead
			}
			mu.Lock()
			defer mu.Unlock()
			said = append(said, membership.Testimony{Connected: a.Connected, Lost: a.Lost})
		})
	}
	calls.Wait()
	return others, said
}

// answerLink serves methodLink.
func (d *Daemon) answerLink(body []byte) ([]byte, error) {
	var c linkCall
	if err := readCall("the link call", body, &c); err != nil {
		return nil, err
	}
	a := linkAnswer{Lost: d.outages.has(c.Node)}
	for _, p := range d.mesh.Peers() {
		if p.Peer.Node == c.Node && p.Peer.Boot == c.Boot {
			a.Connected = p.Connected || p.Inbound
		}
	}
	return json.Marshal(a)
}
