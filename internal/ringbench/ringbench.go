// Package ringbench measures rings of many members in one process, over the
// network in memory: how soon a vanished host is shown as dead, how many live
// ones are under packet loss, and what gossip costs. The members are the real
// ones: membership.Ring, or memberlist with its own default settings to compare
// with. All waiting is by package time, so that it can run in virtual time.
package ringbench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/kevlard/kevlard/internal/measure"
	"github.com/kevlard/kevlard/membership"
	"github.com/kevlard/kevlard/membership/memtransport"
)

const (
	// settleLimit is how long a ring may take until all members show all.
	settleLimit = 10 * time.Minute
	// deathLimit is how long a death may take until all show it.
	deathLimit = 5 * time.Minute
	// mostDown bounds the hosts that are down at once, so that one death hardly
	// disturbs the detection of another: ten, or one of so many in larger rings.
	mostDown, mostDownOf = 10, 33
	// apart is the mean time between two starts, and between two kills. A member passes on
	// some 180 pieces of news a second; where starts come faster, newcomers find that many
	// do not know them yet, and exchange all that they know with each of those.
	apart, killApart = 10 * time.Millisecond, 500 * time.Millisecond
	// growth is how long a member is up before it counts as an observer, or may vanish.
	growth = 10 * time.Second
	// rest is how long a host stays away after everyone has seen it dead. By itself,
	// memberlist counts incarnations from 1 in each life, so a rumour of the old death
	// that is still under way kills the new life for a moment at members that know neither.
	rest = 10 * time.Second
	poll = 50 * time.Millisecond
	// least is how long a phase lasts at least when Limit is over.
	least = 10 * time.Second
	// narrateEvery is the number of seconds between two words on what goes on.
	narrateEvery = 10
	// calm is how long a ring is left alone after its start.
	calm = 10 * time.Second
	// lagEvery is how often the lateness of the host's timers is measured.
	lagEvery = 10 * time.Millisecond
)

// Config says what to measure.
type Config struct {
	// Settings is a profile of membership, or membership.MemberlistLAN.
	Settings string
	// Members is the size of the ring, 3 or more.
	Members int
	// Kills is how many hosts vanish, one after another; each comes back when
	// everyone has seen it dead.
	Kills int
	// Idle is how long the traffic of the undisturbed ring is measured, Soak how
	// long the ring runs under Loss (the fraction of packets lost).
	Idle, Soak time.Duration
	Loss       float64
	// Seed chooses the victims, the losses and the times of starts and kills.
	Seed uint64
	// Virtual runs the ring on a clock of its own, which goes on when all members have
	// done what they had to: the figures are those of a machine that is never late, on a
	// network without delay, however long it takes here.
	Virtual bool
	// Limit is how long it may take here, by the host's clock; 0: no limit. After it no more
	// hosts vanish, and the rest is short.
	Limit time.Duration
	// Progress, if set, is told what goes on.
	Progress func(string)
}

// Quantiles are milliseconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Result is what was measured.
type Result struct {
	Settings string `json:"settings"`
	Members  int    `json:"members"`
	Kills    int    `json:"kills"` // that were measured
	// Clock is virtual or real. TookS is how long it took by the host's clock, and
	// CutShort says that Limit came first.
	Clock    string  `json:"clock"`
	TookS    float64 `json:"took_s"`
	CutShort bool    `json:"cut_short"`
	// First is from a host's vanishing until one member shows it as dead,
	// Everyone until all do. The derived ones are by membership.Detection.
	First           Quantiles `json:"first_ms"`
	Everyone        Quantiles `json:"everyone_ms"`
	DerivedFirst    Quantiles `json:"derived_first_ms"` // without max
	DerivedEveryone Quantiles `json:"derived_everyone_ms"`
	// Per node and second, while nothing happens: what one node sends.
	Packets     float64 `json:"packets_per_node_s"`
	PacketBytes float64 `json:"packet_bytes_per_node_s"`
	Streams     float64 `json:"streams_per_node_s"`      // dialled by it
	StreamBytes float64 `json:"stream_bytes_per_node_s"` // of all streams
	// FalseDeaths counts, over all observers, live members shown as dead:
	// without loss (while idle and during the kills), and under loss. They are nil if
	// Starved: then nobody knows whose they are.
	FalseDeaths     *uint64 `json:"false_deaths"`
	SoakSeconds     float64 `json:"soak_s"`
	LossPercent     float64 `json:"loss_percent"`
	LossFalseDeaths *uint64 `json:"loss_false_deaths"`
	// SettleMS is from the first start until all members show all; in the end those that
	// lack some are made to ask.
	SettleMS float64 `json:"settle_ms"`
	// HostLag is how late this host's timers were, zero in virtual time. Starved says
	// that it was too much: the figures are those of an overloaded machine.
	HostLag Quantiles `json:"host_lag_ms"`
	Starved bool      `json:"starved"`
}

// MaxLag is how late a host's timers may be, in 99 % of the cases, for the figures to be
// those of the ring: a fifth of the shortest wait for an answer that counts.
const MaxLag = 50 * time.Millisecond

// Run measures one ring.
func Run(ctx context.Context, cfg Config) (Result, error) {
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	b := &bench{
		cfg: cfg, net: memtransport.NewNetwork(cfg.Seed), rng: rand.New(rand.NewPCG(cfg.Seed, 2)),
		members: make([]member, cfg.Members), watch: newWatch(cfg.Members), buried: make([]uint64, cfg.Members),
	}
	out := Result{Settings: cfg.Settings, Members: cfg.Members, LossPercent: 100 * cfg.Loss, Clock: "real"}
	if err := derive(&out); err != nil {
		return out, err
	}
	began := time.Now()
	quiet := b.narrate()
	var err error
	if cfg.Virtual {
		out.Clock = "virtual"
		err = inVirtualTime(ctx, func(ctx context.Context) error {
			err := b.measure(ctx, &out)
			b.stop()
			return err
		})
	} else {
		lag := startLag()
		err = b.measure(ctx, &out)
		out.HostLag = quantiles(lag())
		b.stop()
	}
	quiet()
	out.TookS = time.Since(began).Seconds()
	if out.Starved = out.HostLag.P99 > millis(MaxLag); out.Starved {
		out.FalseDeaths, out.LossFalseDeaths = nil, nil
	}
	return out, err
}

func derive(r *Result) error {
	for _, q := range []struct {
		of              float64
		first, everyone *float64
	}{{0.5, &r.DerivedFirst.P50, &r.DerivedEveryone.P50}, {0.99, &r.DerivedFirst.P99, &r.DerivedEveryone.P99}} {
		first, everyone, err := membership.Detection(r.Settings, r.Members, q.of)
		if err != nil {
			return err
		}
		*q.first, *q.everyone = millis(first), millis(everyone)
	}
	return nil
}

type bench struct {
	cfg     Config
	net     *memtransport.Network
	rng     *rand.Rand
	members []member // nil: down
	boots   int
	watch   *watch
	buried  []uint64 // false deaths that stopped members had counted

	phase atomic.Pointer[string]
	late  atomic.Bool // Limit is over
}

func (b *bench) measure(ctx context.Context, out *Result) error {
	start := time.Now()
	for i := range b.members {
		b.now("%d of %d members started", i, len(b.members))
		if err := b.start(i); err != nil {
			return err
		}
		if err := sleep(ctx, rand64(b.rng, 2*apart)); err != nil {
			return err
		}
	}
	if err := b.gather(ctx); err != nil {
		return err
	}
	b.watch.settled()
	out.SettleMS = millis(time.Since(start))
	b.cfg.Progress(fmt.Sprintf("all %d members show all after %.1f s of the ring's time", b.cfg.Members, out.SettleMS/1000))
	early := b.falseDeaths()
	if err := b.pass(ctx, calm, "calm after the start"); err != nil {
		return err
	}
	deaths, err := b.kills(ctx)
	if err != nil {
		return err
	}
	var first, everyone []float64
	for _, d := range deaths {
		first, everyone = append(first, millis(d.first.Sub(d.killed))), append(everyone, millis(d.last.Sub(d.killed)))
	}
	out.Kills, out.First, out.Everyone = len(deaths), quantiles(first), quantiles(everyone)
	out.CutShort = out.Kills < b.cfg.Kills
	if b.cfg.Soak+b.cfg.Idle == 0 {
		return nil
	}
	b.cfg.Progress(fmt.Sprintf("%d hosts vanished and came back", len(deaths)))
	if err := b.settle(ctx); err != nil {
		return err
	}
	if err := sleep(ctx, rest); err != nil {
		return err
	}
	clean := b.falseDeaths()
	b.net.Loss(b.cfg.Loss)
	began := time.Now()
	if err := b.pass(ctx, b.cfg.Soak, "packets are lost"); err != nil {
		return err
	}
	soak := time.Since(began)
	b.net.Loss(0)
	if err := b.settle(ctx); err != nil { // a false death counts when it is taken back
		return err
	}
	lost := b.falseDeaths()
	if err := sleep(ctx, rest); err != nil {
		return err
	}
	before := b.net.Traffic()
	began = time.Now()
	if err := b.pass(ctx, b.cfg.Idle, "idle"); err != nil {
		return err
	}
	idle := time.Since(began)
	b.traffic(out, before, idle)
	out.SoakSeconds, out.LossFalseDeaths = soak.Seconds(), new(lost-clean)
	out.FalseDeaths = new(clean - early + b.falseDeaths() - lost)
	out.CutShort = out.CutShort || idle < b.cfg.Idle || soak < b.cfg.Soak
	return nil
}

func (b *bench) traffic(out *Result, before memtransport.Traffic, d time.Duration) {
	now := b.net.Traffic()
	rate := func(now, before uint64) float64 {
		return measure.Ratio(float64(now-before), float64(b.cfg.Members)*d.Seconds())
	}
	out.Packets, out.PacketBytes = rate(now.Packets, before.Packets), rate(now.PacketBytes, before.PacketBytes)
	out.Streams, out.StreamBytes = rate(now.Streams, before.Streams), rate(now.StreamBytes, before.StreamBytes)
}

// start starts member i, a new life if it lived before.
func (b *bench) start(i int) error {
	b.boots++
	addr := addrOf(i)
	b.net.Blackhole(addr, false)
	transport, err := b.net.Listen(addr)
	if err != nil {
		return err
	}
	seeds := make([]string, 0, 3)
	for s := 0; len(seeds) < 3; s++ {
		if s != i && (s >= len(b.members) || b.members[s] != nil || b.boots <= len(b.members)) {
			seeds = append(seeds, addrOf(s))
		}
	}
	id := identity{index: i, addr: addr, boot: fmt.Sprintf("boot-%06d", b.boots)}
	if b.cfg.Settings == membership.MemberlistLAN {
		b.members[i], err = startPlain(id, transport, seeds, b.watch)
	} else {
		b.members[i], err = startRing(id, b.cfg.Settings, transport, seeds, b.watch)
	}
	return err
}

// kills makes hosts vanish, and come back when everyone has seen it.
func (b *bench) kills(ctx context.Context) ([]*death, error) {
	var done []*death
	down := map[int]*death{} // until they are started again
	limit := max(1, min(mostDown, b.cfg.Members/10), b.cfg.Members/mostDownOf)
	for begun := 0; ; {
		wanted := b.cfg.Kills
		if b.late.Load() {
			wanted = min(wanted, max(1, begun))
		}
		if len(done) >= wanted && (b.cfg.Soak+b.cfg.Idle == 0 || len(down) == 0) {
			break
		}
		b.now("%d of %d hosts vanished, %d of them shown dead by all", begun, b.cfg.Kills, len(done))
		if i := b.rng.IntN(len(b.members)); begun < wanted && len(down) < limit && b.watch.grown(i) {
			down[i] = b.kill(i)
			begun++
		}
		if err := sleep(ctx, rand64(b.rng, 2*killApart)); err != nil {
			return nil, err
		}
		for i := range b.members { // not over the map: starts use the random numbers
			d := down[i]
			switch {
			case d == nil:
			case !b.watch.over(d):
				if time.Since(d.killed) > deathLimit {
					return nil, fmt.Errorf("the death of member %d is not seen by all within %v", i, deathLimit)
				}
			case !d.counted:
				d.counted = true
				done = append(done, d)
			case time.Since(d.last) >= rest:
				delete(down, i)
				if err := b.start(i); err != nil {
					return nil, err
				}
			}
		}
	}
	return done, nil
}

// kill makes a host vanish without a packet.
func (b *bench) kill(i int) *death {
	m := b.members[i]
	b.members[i] = nil
	d := b.watch.expect(i, m.boot())
	b.net.Blackhole(addrOf(i), true)
	m.stop()
	b.buried[i] += m.falseDeaths()
	return d
}

func (b *bench) falseDeaths() uint64 {
	sum := uint64(0)
	for i, m := range b.members {
		if sum += b.buried[i]; m != nil {
			sum += m.falseDeaths()
		}
	}
	return sum
}

func (b *bench) stop() {
	for i, m := range b.members {
		if m != nil {
			m.stop()
			b.members[i] = nil
		}
	}
}

func addrOf(i int) string { return fmt.Sprintf("10.%d.%d.%d:7946", i>>16, i>>8&255, i&255) }

func nameOf(i int) string { return fmt.Sprintf("node-%05d", i) }

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func rand64(rng *rand.Rand, below time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(below)))
}

// startLag measures how late timers are until the function it returns is called.
func startLag() func() []float64 {
	stop, out := make(chan struct{}), make(chan []float64)
	go func() {
		var lags []float64
		for {
			due := time.Now().Add(lagEvery)
			select {
			case <-time.After(lagEvery):
				lags = append(lags, millis(time.Since(due)))
			case <-stop:
				out <- lags
				return
			}
		}
	}()
	return func() []float64 {
		close(stop)
		return <-out
	}
}

func quantiles(v []float64) Quantiles {
	return Quantiles{P50: measure.Quantile(v, 0.5), P99: measure.Quantile(v, 0.99), Max: measure.Quantile(v, 1)}
}

// millis is d in milliseconds, to a tenth.
func millis(d time.Duration) float64 { return float64(d.Round(100*time.Microsecond)) / 1e6 }
