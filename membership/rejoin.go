package membership

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// rejoin joins for ever: with back-off while nobody takes us in, once more soon
// after the first success (a single join leaves some views incomplete), and
// then every rejoinMin to rejoinMax, since two halves of a partition do not talk
// to each other and only a join brings them together again. Where few nodes do
// that, it can take long until one of them does: while some members are dead,
// they do it every missMin to missMax, from the death on.
func (r *Ring) rejoin(ctx context.Context) error {
	var (
		backoff = r.p.retryMin
		joins   = 0 // successful rounds
	)
	for ctx.Err() == nil {
		wait := r.p.rejoinMin + rand.N(r.p.rejoinMax-r.p.rejoinMin)
		if r.misses() {
			wait = r.missWait()
		}
		seeds := r.seeds(joins > 0)
		if len(seeds) > 0 && !r.left.Load() {
			res, err := r.joinAll(ctx, seeds)
			var taken *NameTakenError
			if errors.As(err, &taken) && !r.shown.Load() {
				return err
			}
			r.report(ctx, res)
			switch {
			case res.Answered > 0:
				if joins++; joins == 1 {
					wait = r.p.again
				}
				if joins <= 2 {
					r.introduce(ctx)
				}
				backoff = r.p.retryMin
			case joins == 0 || r.table.live.Load() <= 1:
				wait = backoff/2 + rand.N(backoff/2)
				backoff = min(2*backoff, r.p.retryMax)
				if res.reached > 0 {
					wait = r.p.retryMin // they are there, but do not show us yet
				}
			}
		}
		r.rest(ctx, wait)
	}
	return nil
}

// rest waits for the next round. Who dies meanwhile in a small ring makes the wait one of
// those in which somebody is missed, if that is shorter.
func (r *Ring) rest(ctx context.Context, wait time.Duration) {
	end := time.Now().Add(wait)
	t := time.NewTimer(wait)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			return
		case <-r.kick:
			pause(ctx, r.p.again)
			return
		case <-r.table.ended:
			if !r.misses() {
				continue
			}
			if sooner := time.Now().Add(r.missWait()); sooner.Before(end) {
				end = sooner
				t.Reset(time.Until(end))
			}
		}
	}
}

// misses reports whether the ring is small and lacks somebody who has not left.
func (r *Ring) misses() bool { return r.table.live.Load() <= smallRing && r.table.missing() }

func (r *Ring) missWait() time.Duration { return r.p.missMin + rand.N(r.p.missMax-r.p.missMin) }

// introduce asks every member whether it shows this boot, and exchanges states
// with those that do not. Gossip is a matter of chance: now and then a member
// misses a restart until its next push/pull, and takes the old boot for alive,
// since the new one answers its probes.
func (r *Ring) introduce(ctx context.Context) {
	pause(ctx, r.p.settle) // most learn by gossip meanwhile
	members := r.table.members()
	rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	var g errgroup.Group
	g.SetLimit(asksAtOnce)
	for _, m := range members[:min(len(members), maxIntroduce)] {
		if m.State != StateAlive || m.Name == r.cfg.Name {
			continue
		}
		g.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			if v, ok := r.ask(ctx, m.Addr, false); !ok || v.Shows == showsYou {
				return nil // unanswered: the second round asks again
			}
			if _, err := r.joinOne(ctx, m.Addr); err != nil {
				r.cfg.Log.Debug("a member does not show this node", "node", m.Name, "addr", m.Addr, "err", err)
			}
			return nil
		})
	}
	_ = g.Wait() // the functions return nil
}

// report logs what a round could not do: at warn the first time and then once a
// minute, else at debug. One unreachable seed among many is no news while others
// answer.
func (r *Ring) report(ctx context.Context, res JoinResult) {
	if ctx.Err() != nil {
		return
	}
	for addr, e := range res.Errors {
		r.cfg.Log.Debug("join failed", "addr", addr, "err", e)
	}
	if res.Answered > 0 {
		r.refusal.Store(nil)
		return
	}
	refusal := refusalOf(res)
	r.refusal.Store(refusal)
	if refusal != nil {
		r.log.once("join", "no address of the ring takes this node in; trying for ever",
			"asked", res.Asked, "for_example", refusal.Addr, "err", refusal.Why, "alive", r.table.live.Load())
	}
}

// seeds picks the addresses of one round. Alone, a node tries what it knows;
// joined, mostly the addresses that its view lacks.
func (r *Ring) seeds(joined bool) []string {
	alive := make(map[string]bool)
	var members, absent []string
	for _, m := range r.table.members() {
		if m.State == StateAlive && m.Addr != r.addr {
			alive[m.Addr] = true
			members = append(members, m.Addr)
		}
	}
	consider := func(addr string) {
		if addr != r.addr && !alive[addr] && !slices.Contains(absent, addr) {
			absent = append(absent, addr)
		}
	}
	configured := slices.Clone(r.cfg.Join)
	shuffle(configured)
	for _, a := range configured {
		consider(a)
	}
	nConfigured := len(absent)
	r.peersMu.Lock()
	for _, p := range r.peers {
		consider(p.Addr)
	}
	r.peersMu.Unlock()
	shuffle(absent[nConfigured:])
	shuffle(members)
	if joined && len(members) > 0 {
		shuffle(absent)
		return append(absent[:min(len(absent), healSeeds)], members[:min(len(members), aliveSeeds)]...)
	}
	// Leave a quarter of the round to remembered peers, in case that every
	// configured address is of a host long gone.
	if room := roundSeeds * 3 / 4; nConfigured > room && len(absent) > nConfigured {
		absent = slices.Delete(absent, room, nConfigured)
	}
	absent = append(absent, members...)
	return absent[:min(len(absent), roundSeeds)]
}

func shuffle(s []string) { rand.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] }) }
