package membership

import (
	"fmt"
	"net"
	"time"

	"github.com/kevlard/kevlard"
)

// Sign is what one look at a member whose connections broke has shown.
type Sign int

// The signs, the strongest last.
const (
	// SignSilent: nothing answered in time. Its host has no power, is cut off, or is slow.
	SignSilent Sign = iota
	// SignRefused: its host answers, and nothing listens at any of its ports.
	SignRefused
	// SignAlive: a port took a connection, or a ping was answered, be it by a new process.
	SignAlive
)

// Step is what an inquest does next.
type Step int

// The steps.
const (
	Look    Step = iota // again, after a fifth of the patience
	Ask                 // others, for Hear
	Dismiss             // it lives, or is for the ring to find out
	Bury                // it is gone
)

// Testimony is what another member says of the one in question.
type Testimony struct {
	Connected bool // its own connections to that boot, or from it, are up
	Lost      bool // it had connections to it, and they broke
}

// Inquest decides whether one boot of a member is gone, sooner than probes and suspicion
// do, from evidence that a slow, frozen or lossy host can't give. It begins when the
// connections to the member broke.
//
//	looks, for the patience    what others say
//	refused throughout         some answer, none is connected  bury
//	refused throughout         there is nobody else            bury
//	some refused, some silent  two answer, all have lost it    bury
//	all silent                                                 dismiss
//	alive after the patience                                   dismiss
//	alive before               begin again: its connections go before its ports do
//	                           somebody is connected           dismiss
//	anything else                                              look again, up to mostPatience
//
// Refused throughout is for the whole patience; a look that was silent before it, as when
// this host itself stood still, does not count then.
//
// Connections break by themselves only after seconds without a byte, which is when the
// ring has decided; if they break sooner, the process or its host has closed them. A host
// that vanishes without a word gives no such evidence, and can't be told from one that
// stands still: for it the ring's own times hold.
type Inquest struct {
	patience time.Duration
	began    time.Time
	from     time.Time // since when the looks below are counted
	refused  int
	silent   int
	row      int       // refused looks since the last silent one
	rowBegan time.Time // when it began
	steady   bool      // refused throughout
}

// mostPatience is after how many times the patience an inquest ends without a result: the
// ring has found out by then.
const mostPatience = 20

// NewInquest begins at now. patience is how long the evidence must stand: a process that
// is restarted at once is back by then.
func NewInquest(now time.Time, patience time.Duration) *Inquest {
	return &Inquest{patience: patience, began: now, from: now}
}

// Look takes the result of a look that ended at now.
func (q *Inquest) Look(now time.Time, s Sign) Step {
	switch s {
	case SignAlive:
		if now.Sub(q.began) >= q.patience {
			return Dismiss
		}
		*q = Inquest{patience: q.patience, began: q.began, from: now}
		return Look
	case SignRefused:
		if q.row == 0 {
			q.rowBegan = now
		}
		q.refused++
		q.row++
	case SignSilent:
		q.silent++
		q.row = 0
	}
	q.steady = q.refused > 0 && q.silent == 0 || q.row >= 3 && now.Sub(q.rowBegan) >= q.patience
	switch {
	case now.Sub(q.from) < q.patience || q.refused+q.silent < 3:
		return Look
	case q.refused == 0 || now.Sub(q.began) > mostPatience*q.patience:
		return Dismiss
	default:
		return Ask
	}
}

// Hear decides. others is how many further members are alive here, said what those of them
// that were asked answered, fewer if some did not.
func (q *Inquest) Hear(others int, said []Testimony) Step {
	lost := 0
	for _, t := range said {
		if t.Connected {
			return Dismiss
		}
		if t.Lost {
			lost++
		}
	}
	switch {
	case q.refused == 0:
	case q.steady && (others == 0 || len(said) > 0):
		return Bury
	case q.silent > 0 && lost >= 2 && lost == len(said):
		return Bury
	}
	return Look
}

// Patience is how long the evidence of an Inquest has to stand in this ring's profile.
func (r *Ring) Patience() time.Duration { return r.p.probe }

// Ping reports whether a member answers a ping within the profile's time for one, in
// whatever life it is.
func (r *Ring) Ping(m Member) (bool, error) {
	to, err := net.ResolveUDPAddr("udp", m.Addr)
	if err != nil {
		return false, fmt.Errorf("ping node %s: %w", m.Name, err)
	}
	_, err = r.ml.Ping(string(m.Name), to)
	return err == nil, nil
}

// Bury shows a boot as dead that an Inquest found gone, and reports whether it was shown
// as alive until now. Should it show life after all, it is alive again, and counts as a
// false death.
func (r *Ring) Bury(name kevlard.NodeID, boot kevlard.BootID) bool {
	done := r.table.bury(name, boot, time.Now())
	r.lonely()
	return done
}

// vouchProbes is how many probe intervals Vouch holds: less than gossip takes for any
// death, which is one and the suspicion (profile.mult, 4 or 5), so no real one is shown
// later for it.
const vouchProbes = 4

// Vouch says that a boot was heard beside gossip just now: a message of it came over a
// connection. While that was within four probe intervals, a verdict of gossip does not make
// it dead: packets were lost or late, and its refutation is on its way. It is cheap.
func (r *Ring) Vouch(name kevlard.NodeID, boot kevlard.BootID) {
	r.table.attest(name, boot, time.Now())
}

// expire looks after those that gossip calls dead and who are vouched for.
func (r *Ring) expire() {
	if r.table.expire(time.Now()) {
		time.AfterFunc(r.table.vouch/4, r.expire)
	}
	r.lonely()
}

// lonely makes a node that is alone say so, and try to get back.
func (r *Ring) lonely() {
	if r.table.live.Load() <= 1 {
		r.soon()
	}
}
