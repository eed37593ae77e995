package membership

import (
	"fmt"
	"time"

	"github.com/kevlard/kevlard"
)

// State is what this node's view says of a member.
type State string

// The states. StateSuspect is part of the vocabulary and never reported by this
// package, because memberlist publishes no suspicion: others derive it from the
// data path.
const (
	StateAlive   State = "alive"
	StateSuspect State = "suspect"
	StateDead    State = "dead" // stopped answering; its peer holds the name for 24 hours
	StateLeft    State = "left" // said goodbye; its name is free
)

func (s State) check() error {
	switch s {
	case StateAlive, StateSuspect, StateDead, StateLeft:
		return nil
	}
	return fmt.Errorf("state %.20q: want alive, suspect, dead or left", string(s))
}

// Member is one name of the view.
type Member struct {
	Name  kevlard.NodeID
	State State
	Meta  Meta          // of the latest boot; of a tomb learned from others only Peer and Boot
	Addr  string        // gossip host:port
	RTT   time.Duration // smoothed over gossip probes; 0 until measured, and for ourselves
	Since time.Time     // when State or the boot last changed, by our clock
}

// NameTakenError says that another peer holds our name. Run returns it to a
// newcomer; a node that the ring has shown is never stopped by it.
type NameTakenError struct {
	Ring  string
	Name  kevlard.NodeID
	Peer  string // the holder
	Addr  string // its gossip host:port
	State State  // alive or dead
}

func (e *NameTakenError) Error() string {
	return fmt.Sprintf("node name %q is held in ring %q by peer %s (%s, at %s): give this node another name, "+
		"or, if that peer is gone for good, run `kevlard force-leave %s` on a member and start again",
		e.Name, e.Ring, e.Peer, e.State, e.Addr, e.Name)
}
