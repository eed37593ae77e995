package topology

import (
	"cmp"
	"time"
)

// Settle is how long things must stay as they are before a node acts on them. Zero is
// the default of each.
type Settle struct {
	// Join is the wait before free memory is filled, from the last join that is seen: all
	// who start together are given their parts at once, and nobody loads what a later one
	// takes over. Default 1 s. A ring that does not come to rest is filled after five
	// times that.
	Join time.Duration
	// Newcomer is the wait before a node that holds nothing takes stages over from others
	// that have more, and from the last join that is seen before what is held too often is
	// given up, or from the time since when it is, five times as long. Default 10 s: a node
	// that flaps must not be worth a move, and when a split is healed, who sees only a part
	// of the others does not know which holders the plan will want.
	Newcomer time.Duration
	// Death is the wait from the last word of a node that the ring calls dead to the
	// adoption of what it held. Default 4 s: a daemon that restarts is back by then and
	// costs nothing. It doubles each time that it ended with the node's return, up to 32
	// times, while the model can be served. It is not waited for where the model can't be
	// served and nobody else has the layers. An eighth is waited for from the ring's last
	// verdict on anybody, up to half in all: when many go at once, as in a split, the first
	// verdict asks for other things than the last.
	Death time.Duration
	// Drain is the wait before a draining node's stages are adopted where others hold them
	// too; those that nobody else holds are adopted at once. Default 10 s: longer than a
	// restart of a daemon that has few streams.
	Drain time.Duration
	// Rebalance is the wait before weights move, or layers are cut anew, only to make
	// things better. Default 30 s.
	Rebalance time.Duration
	// Release is the wait from the moment when a stage is not wanted here to its
	// announcement as releasing, and again from there to its end. It must be longer than
	// twice what the news of a record takes to reach all nodes: with that, no two holders
	// give up the same layers on each other's account. Default 3 s.
	Release time.Duration
	// Load is how long a load may make no progress before it is given up, except while it
	// says that it waits. Default 2 min.
	Load time.Duration
	// Retry is how long a node leaves layers alone whose load failed; it doubles with each
	// failure up to RetryMax. Defaults 30 s and 30 min.
	Retry, RetryMax time.Duration
	// Forget is after how long a node's flapping is forgotten. Default 5 min.
	Forget time.Duration
}

func (s Settle) withDefaults() Settle {
	return Settle{
		Join: cmp.Or(s.Join, time.Second), Newcomer: cmp.Or(s.Newcomer, 10*time.Second), Death: cmp.Or(s.Death, 4*time.Second),
		Drain: cmp.Or(s.Drain, 10*time.Second), Rebalance: cmp.Or(s.Rebalance, 30*time.Second), Release: cmp.Or(s.Release, 3*time.Second),
		Load: cmp.Or(s.Load, 2*time.Minute), Retry: cmp.Or(s.Retry, 30*time.Second), RetryMax: cmp.Or(s.RetryMax, 30*time.Minute),
		Forget: cmp.Or(s.Forget, 5*time.Minute),
	}
}
