package membership

import (
	"fmt"
	"math"
	"time"

	"github.com/hashicorp/memberlist"
)

// profile is a set of timers. Detection of a death takes about
// probe + mult*probe for rings up to 10 nodes, more with the logarithm of the
// size; see the ops notes in the documentation for measurements.
type profile struct {
	probe, probeTimeout time.Duration // probe must exceed 2*probeTimeout + RTT, else nacks come late and health falls
	gossip              time.Duration
	mult, maxMult       int
	pushPull            time.Duration
	tcp                 time.Duration // dial and stream deadline; also the longest that Run needs to end
	toTheDead           time.Duration // how long the dead are gossiped to and kept by memberlist
	ask                 time.Duration // wait for one verdict
	verify              time.Duration // wait for a seed to show us
	settle              time.Duration // time for gossip before members are asked one by one
	again               time.Duration // second join
	rejoinMin           time.Duration // rejoin for ever, uniformly in [rejoinMin, rejoinMax)
	rejoinMax           time.Duration
	missMin, missMax    time.Duration // the same in a small ring that misses somebody
	retryMin, retryMax  time.Duration // back-off while alone
	announce            time.Duration // least time between two announcements of our own meta
}

// profileNamed returns the timers for a [ring] profile.
func profileNamed(name string) (profile, error) {
	lan := profile{
		probe: 500 * time.Millisecond, probeTimeout: 150 * time.Millisecond,
		gossip: 100 * time.Millisecond, mult: 4, maxMult: 4,
		pushPull: 10 * time.Second, tcp: 3 * time.Second, toTheDead: time.Minute,
		ask: 300 * time.Millisecond, verify: 2 * time.Second,
		settle: 500 * time.Millisecond,
		again:  2 * time.Second, rejoinMin: 30 * time.Second, rejoinMax: time.Minute,
		missMin: 8 * time.Second, missMax: 15 * time.Second,
		retryMin: time.Second, retryMax: 20 * time.Second,
		announce: 100 * time.Millisecond,
	}
	switch name {
	case "", "lan":
		return lan, nil
	case "wan":
		wan := lan
		wan.probe, wan.probeTimeout = 2*time.Second, 700*time.Millisecond
		wan.gossip, wan.mult = 250*time.Millisecond, 5
		wan.pushPull, wan.tcp = 20*time.Second, 10*time.Second
		wan.toTheDead = 3 * time.Minute
		wan.ask, wan.verify = time.Second, 5*time.Second
		wan.settle = 1500 * time.Millisecond
		return wan, nil
	}
	return profile{}, fmt.Errorf("ring profile %q: want lan or wan", name)
}

// config returns memberlist's settings for p. Names, addresses, delegates and
// the key are set by New.
func (p profile) config() *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.ProbeInterval, c.ProbeTimeout = p.probe, p.probeTimeout
	c.IndirectChecks = 3
	c.GossipInterval, c.GossipNodes = p.gossip, 3
	c.SuspicionMult, c.SuspicionMaxTimeoutMult = p.mult, p.maxMult
	c.AwarenessMaxMultiplier = 8
	c.RetransmitMult = 6
	c.PushPullInterval = p.pushPull
	c.TCPTimeout = p.tcp
	c.GossipToTheDeadTime = p.toTheDead
	// A dead name's new address is taken at once: which peer may take it is
	// decided by our table (see table.admit), so waiting would only delay a node
	// that moved.
	c.DeadNodeReclaimTime = time.Nanosecond
	c.EnableCompression = false
	c.UDPBufferSize = 1400 // also on jumbo frames: the path may be smaller
	c.HandoffQueueDepth = 4096
	return c
}

// MemberlistLAN names memberlist's DefaultLANConfig for Detection, to compare with.
const MemberlistLAN = "memberlist"

// Detection derives how long after a host has silently vanished from a ring of n,
// 2 or more, the first member shows it as dead, when nothing else is wrong: for
// half of the deaths (q = 0.5), or for the fraction q of them. settings is a
// profile's name or MemberlistLAN.
//
// Each of the n-1 others probes the members in a random order, one per probe
// interval, so that it meets the dead one at a time that is about uniform within
// n-1 intervals; the first of them needs (n-1)(1-(1-q)^(1/(n-1))) intervals, which
// tends to -ln(1-q). The probe fails at its interval's end. Then the suspicion
// lasts mult*max(1, log10 n) intervals, since others confirm it meanwhile (a ring
// of three wants no confirmation). Everyone knows it after some gossip intervals
// more: about log4 n, three of them being told at a time.
//
// Where nobody can confirm, as in a minority or when most hosts die at once, it
// takes up to maxMult times as long (lan 4, memberlist 6).
func Detection(settings string, n int, q float64) (first, everyone time.Duration, err error) {
	var c *memberlist.Config
	if settings == MemberlistLAN {
		c = memberlist.DefaultLANConfig()
	} else {
		p, err := profileNamed(settings)
		if err != nil {
			return 0, 0, err
		}
		c = p.config()
	}
	others := float64(n - 1)
	probes := 1 + others*(1-math.Pow(1-q, 1/others))
	suspicion := float64(c.SuspicionMult) * max(1, math.Log10(float64(n)))
	first = time.Duration((probes + suspicion) * float64(c.ProbeInterval))
	rounds := math.Log(float64(n)) / math.Log(float64(c.GossipNodes+1))
	return first, first + time.Duration(rounds*float64(c.GossipInterval)), nil
}
