package membership

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
)

func TestJoinByThreeSeeds(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(8)
		m := procs[7].Members()[0]
		if m.Meta.Mesh != "10.0.0.1:7947" || m.Meta.ProtoMax != 2 || m.Addr != addrOf(1) {
			t.Errorf("member as seen by another: %+v", m)
		}
		w.eventually(3*time.Second, "all know that the ring shows them", func() bool {
			for _, p := range procs {
				if !p.shown.Load() {
					return false
				}
			}
			return true
		})
	})
}

func TestDeathIsSeenByAll(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(8)
		for _, p := range procs {
			select {
			case <-p.Changed():
			default:
			}
		}
		w.net.Blackhole(addrOf(5), true)
		rest := without(procs, 4)
		took := w.agree(10*time.Second, rest...)
		t.Logf("dead seen by all after %v", took)
		for _, p := range rest {
			if got, want := p.view(StateDead), selves(procs[4]); got != want {
				t.Errorf("%s shows dead [%s], want [%s]", p.cfg.Name, got, want)
			}
			select {
			case <-p.Changed():
			default:
				t.Errorf("%s did not signal the change", p.cfg.Name)
			}
		}
	})
}

func TestLeaveIsNoDeath(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(8)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		start := time.Now()
		if err := procs[2].Leave(ctx); err != nil {
			t.Fatal(err)
		}
		t.Logf("leave took %v", time.Since(start))
		procs[2].kill()
		rest := without(procs, 2)
		w.agree(3*time.Second, rest...)
		for _, p := range rest {
			if got, want := p.view(StateLeft), selves(procs[2]); got != want {
				t.Errorf("%s shows left [%s], want [%s]", p.cfg.Name, got, want)
			}
		}
		// The goodbye itself went round too, which is what counts where the flag
		// was overtaken by the death.
		w.eventually(15*time.Second, "all have heard the goodbye", func() bool {
			for _, p := range rest {
				g := p.table.sync(time.Now()).Gone
				if len(g) != 1 || g[0].Boot != procs[2].cfg.Meta.Boot {
					return false
				}
			}
			return true
		})
		if err := procs[2].Leave(ctx); err != nil {
			t.Errorf("a second leave: %v", err)
		}
		if err := procs[2].kill2(); err != nil {
			t.Errorf("Run: %v", err)
		}
		// The same node comes back in the same process, at the same address.
		back := w.start(w.config(3, addrOf(1)))
		rest = slices.Insert(rest, 2, back)
		w.agree(5*time.Second, rest...)
	})
}

// kill2 returns Run's error.
func (p *proc) kill2() error {
	p.kill()
	return p.err
}

func TestLeaveUnderLoss(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(8)
		w.net.Loss(0.3)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := procs[7].Leave(ctx); err != nil {
			t.Fatal(err)
		}
		procs[7].kill()
		w.eventually(30*time.Second, "all show left", func() bool {
			for _, p := range procs[:7] {
				if p.view(StateLeft) != selves(procs[7]) {
					return false
				}
			}
			return true
		})
	})
}

// K26: restart a node ten times; the members are exactly the live set.
func TestRestartIsANewBoot(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(8)
		for range 10 {
			procs[3].kill()
			time.Sleep(time.Second)
			procs[3] = w.start(w.config(4, seedsOf(1, 2, 3)...))
			if took := w.agree(2*time.Second, procs...); took > time.Second {
				t.Logf("new boot seen by all after %v", took)
			}
		}
		time.Sleep(time.Minute)
		w.agree(time.Millisecond, procs...)
		for _, p := range procs {
			if n := len(p.Members()); n != 8 {
				t.Errorf("%s lists %d members, want 8", p.cfg.Name, n)
			}
		}
	})
}

// A restart must not depend on the luck of gossip: here there is none
// (probes carry rumours too).
func TestRestartWithoutGossip(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.timer = func(p *profile) { p.gossip, p.pushPull, p.probe = 24*time.Hour, 24*time.Hour, 24*time.Hour }
		procs := w.ring(8)
		for range 3 {
			time.Sleep(5 * time.Second)
			procs[3].kill()
			procs[3] = w.start(w.config(4, seedsOf(1, 2, 3)...))
			w.agree(2*time.Second, procs...)
		}
	})
}

// K24: same name and peer, other address, after a crash.
func TestMoveToAnotherAddress(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(8)
		procs[3].kill()
		cfg := w.config(4, seedsOf(1, 2, 3)...)
		cfg.Bind = "10.0.1.4:7946"
		procs[3] = w.start(cfg)
		took := w.agree(8*time.Second, procs...)
		t.Logf("new address taken by all after %v", took)
		for _, p := range procs {
			if m := p.Members()[3]; m.Addr != cfg.Bind {
				t.Errorf("%s shows %s at %s, want %s", p.cfg.Name, m.Name, m.Addr, cfg.Bind)
			}
		}
	})
}

func TestSecondClaimantIsRefused(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(5)
		impostor := func(join ...string) *proc {
			cfg := w.config(2, join...)
			cfg.Bind = "10.0.9.9:7946"
			cfg.Meta.Peer = "peer-impostor"
			return w.start(cfg)
		}
		check := func(p *proc, state State) {
			t.Helper()
			<-p.done
			var taken *NameTakenError
			if !errors.As(p.err, &taken) {
				t.Fatalf("Run of the claimant: %v, want a NameTakenError", p.err)
			}
			if taken.Peer != "peer-02" || taken.Addr != addrOf(2) || taken.State != state {
				t.Errorf("holder %+v, want peer-02 at %s, %s", taken, addrOf(2), state)
			}
			if !strings.Contains(taken.Error(), "force-leave node-02") {
				t.Errorf("no way out named: %v", taken)
			}
		}
		check(impostor(addrOf(4)), StateAlive)
		check(impostor(addrOf(2)), StateAlive) // asks the incumbent itself
		time.Sleep(5 * time.Second)
		w.agree(time.Second, procs...)

		// The dead keep their names, also in the eyes of a node that joined later.
		procs[1].kill()
		rest := without(procs, 1)
		w.agree(10*time.Second, rest...)
		late := w.start(w.config(6, addrOf(1)))
		rest = append(rest, late)
		w.agree(5*time.Second, rest...)
		w.eventually(15*time.Second, "the newcomer knows the dead", func() bool { return late.view(StateDead) != "" })
		check(impostor(addrOf(6)), StateDead)
		time.Sleep(5 * time.Second) // a rumour of it that still travels would take the name when it is free

		// Force-leave frees the name, on all.
		if err := rest[0].ForceLeave("node-03"); err == nil {
			t.Error("force-left a live node")
		}
		if err := rest[0].ForceLeave("node-02"); err != nil {
			t.Fatal(err)
		}
		w.eventually(15*time.Second, "nobody lists node-02", func() bool {
			for _, p := range rest {
				if len(p.Members()) != len(rest) {
					return false
				}
			}
			return true
		})
		heir := impostor(addrOf(6))
		w.agree(10*time.Second, slices.Insert(rest, 1, heir)...)
	})
}

// A partition longer than memberlist remembers the dead, and K22.
func TestPartitionHeals(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(6)
		w.net.Partition(seedsOf(1, 2, 3), seedsOf(4, 5, 6))
		w.agree(60*time.Second, procs[:3]...)
		w.agree(60*time.Second, procs[3:]...)
		time.Sleep(4 * time.Minute)
		w.net.Partition()
		t.Logf("halves merged after %v", w.agree(time.Minute, procs...))

		w.net.Blackhole(addrOf(2), true)
		w.eventually(40*time.Second, "the isolated node sees itself alone", func() bool {
			return procs[1].view(StateAlive) == selves(procs[1])
		})
		time.Sleep(3 * time.Minute)
		w.net.Blackhole(addrOf(2), false)
		t.Logf("one node back after %v", w.agree(time.Minute, procs...))
	})
}

// K42: isolation is logged soon after the last death, not in the next regular
// round, which is 30 to 60 s away.
func TestIsolationIsLogged(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(2)
		time.Sleep(10 * time.Second)
		w.net.Blackhole(addrOf(2), true)
		w.eventually(20*time.Second, "the isolated node warns", func() bool {
			return procs[1].log.count("level=WARN", "takes this node in", "alive=1") > 0
		})
	})
}

// K25: the whole ring restarts without join addresses.
func TestRememberedPeers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		dirs := []string{t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()}
		var procs []*proc
		for i, dir := range dirs {
			cfg := w.config(i+1, addrOf(1))
			cfg.DataDir = dir
			procs = append(procs, w.start(cfg))
		}
		w.agree(5*time.Second, procs...)
		time.Sleep(5 * time.Second)
		for _, p := range procs {
			p.kill()
		}
		time.Sleep(48 * time.Hour)
		for i, dir := range dirs {
			cfg := w.config(i + 1)
			cfg.DataDir = dir
			procs[i] = w.start(cfg)
		}
		t.Logf("re-formed after %v", w.agree(10*time.Second, procs...))
	})
}

func TestOtherSecret(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(3)
		cfg := w.config(4, seedsOf(1, 2, 3)...)
		cfg.Secret = slices.Repeat([]byte{8}, SecretSize)
		var mu sync.Mutex
		var refused []string
		cfg.Refused = func(addr, reason string) {
			mu.Lock()
			defer mu.Unlock()
			refused = append(refused, addr+" "+reason)
		}
		odd := w.start(cfg)
		time.Sleep(50 * time.Second)
		if n := odd.log.count("level=WARN", `msg="a node at`, "different secret"); n != 3 {
			t.Errorf("the odd one warns %d times in 50 s, want once per seed", n)
		}
		mu.Lock()
		slices.Sort(refused)
		mu.Unlock()
		if want := []string{"10.0.0.1:7946 it gossips with a different secret", "10.0.0.2:7946 it gossips with a different secret", "10.0.0.3:7946 it gossips with a different secret"}; !slices.Equal(refused, want) {
			t.Errorf("the odd one is told of %q in 50 s, want %q", refused, want)
		}
		for _, p := range procs {
			if n := p.log.count("level=WARN", "a node at 10.0.0.4:7946 gossips with a different secret"); n != 1 {
				t.Errorf("%s warns %d times in 50 s, want 1", p.cfg.Name, n)
			}
		}
		w.agree(time.Second, procs...)
		_, err := odd.Join(context.Background(), seedsOf(1))
		if err == nil || !strings.Contains(err.Error(), "different secret") {
			t.Errorf("join with another secret: %v", err)
		}
		if why, ok := odd.Refusal(); !ok || why.Asked != 3 || !strings.Contains(why.Why, "different secret") {
			t.Errorf("the odd one does not know why it is alone: %+v", why)
		}
		if why, ok := procs[1].Refusal(); ok {
			t.Errorf("a member of the ring is refused: %+v", why)
		}
	})
}

func TestOtherRing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(3)
		cfg := w.config(4, seedsOf(1)...)
		cfg.Ring = "other"
		odd := w.start(cfg)
		time.Sleep(10 * time.Second)
		w.agree(time.Second, procs...)
		if got := odd.view(StateAlive); got != selves(odd) {
			t.Errorf("alive in the other ring: [%s]", got)
		}
		if procs[0].log.count("level=WARN", "gossips in another ring", "other") != 1 {
			t.Error("no warning names the other ring")
		}
	})
}

func TestJoinVerifies(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(3)
		p := w.start(w.config(4))
		time.Sleep(time.Second)
		res, err := p.Join(context.Background(), []string{addrOf(1), "10.0.0.2", "10.0.0.77:7946"})
		if err != nil {
			t.Fatal(err)
		}
		if res.Asked != 3 || res.Answered != 2 || !slices.Equal(res.Seen, []kevlard.NodeID{"node-01", "node-02"}) || res.Errors["10.0.0.77:7946"] == "" {
			t.Errorf("result %+v", res)
		}
		w.agree(3*time.Second, append(procs, p)...)
		if _, err = p.Join(context.Background(), []string{addrOf(4)}); err == nil || !strings.Contains(err.Error(), "this node itself") {
			t.Errorf("join with ourselves: %v", err)
		}
		if _, err = p.Join(context.Background(), []string{"10.0.0.1:99999"}); err == nil || !strings.Contains(err.Error(), "port") {
			t.Errorf("bad port: %v", err)
		}
	})
}

func TestPacketsBlocked(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(4)
		w.net.BlockPackets(addrOf(3), true)
		time.Sleep(30 * time.Second)
		w.agree(time.Millisecond, procs...) // K37: no flapping
		if procs[0].log.count("level=WARN", "UDP to or from a node is blocked", addrOf(3)) == 0 {
			t.Error("no warning names UDP and the address")
		}
		late := w.start(w.config(5, addrOf(3)))
		w.agree(30*time.Second, append(procs, late)...)
		w.eventually(10*time.Second, "the newcomer warns too", func() bool {
			return late.log.count("level=WARN", "UDP to or from a node is blocked", addrOf(3)) > 0
		})
	})
}

// Bring-up of a larger ring by three seeds leaves no view incomplete for long.
func TestLargerRing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var procs []*proc
		for i := 1; i <= 40; i++ {
			procs = append(procs, w.start(w.config(i, seedsOf(1, 2, 3)...)))
		}
		t.Logf("40 nodes agree after %v", w.agree(15*time.Second, procs...))
		procs[20].kill()
		t.Logf("death seen by all after %v", w.agree(15*time.Second, without(procs, 20)...))
	})
}

func TestSetRecord(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(4)
		for v := range uint64(10000) {
			procs[1].SetRecord(v)
		}
		procs[1].SetRecord(10042)
		took := w.eventually(5*time.Second, "the last record version is seen by all", func() bool {
			for _, p := range procs {
				if p.Members()[1].Meta.Record != 10042 {
					return false
				}
			}
			return true
		})
		t.Logf("seen by all after %v", took)
	})
}

// After a partition in which both sides took in a node of one name, neither
// stops: they serve sessions.
func TestServingClaimantsStay(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		cfg := w.config(9, addrOf(1))
		cfg.Meta.Peer = "peer-twin"
		cfg.Bind = "10.0.1.9:7946"
		a, twin := w.start(w.config(1)), w.start(cfg)
		b, first := w.start(w.config(2)), w.start(w.config(9, addrOf(2)))
		w.agree(5*time.Second, a, twin)
		w.agree(5*time.Second, b, first)
		time.Sleep(5 * time.Second)
		if _, err := b.Join(context.Background(), seedsOf(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		for _, p := range w.procs {
			select {
			case <-p.done:
				t.Errorf("%s at %s stopped: %v", p.cfg.Name, p.addr, p.err)
			default:
			}
		}
		if got, want := a.view(StateAlive), selves(a, b, twin); got != want {
			t.Errorf("one side shows [%s], want [%s]", got, want)
		}
		if got, want := b.view(StateAlive), selves(a, b, first); got != want {
			t.Errorf("the other side shows [%s], want [%s]", got, want)
		}
		if a.log.count("level=WARN", "claims a name held by peer peer-twin") == 0 {
			t.Error("nobody warns")
		}
	})
}

// All nodes configured with one name: an error on each, no ring of ghosts.
func TestOneNameForAll(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var all []*proc
		for i := 1; i <= 3; i++ {
			cfg := w.config(i, seedsOf(1, 2, 3)...)
			cfg.Name = "localhost"
			all = append(all, w.start(cfg))
		}
		time.Sleep(5 * time.Second)
		var taken *NameTakenError
		for _, p := range all[1:] {
			select {
			case <-p.done:
			default:
				t.Fatalf("the claimant at %s goes on", p.addr)
			}
			if !errors.As(p.err, &taken) {
				t.Errorf("Run at %s: %v, want a NameTakenError", p.addr, p.err)
			}
		}
	})
}
