package node

import (
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// TestRoutesStayInsideAZone: of two pipelines, the one in the owner's zone is taken while
// the other is far, and the less loaded one while it is not.
func TestRoutesStayInsideAZone(t *testing.T) {
	for _, tc := range []struct {
		name string
		rtt  time.Duration // to the other zone
		want []kevlard.NodeID
	}{
		{"far", 80 * time.Millisecond, []kevlard.NodeID{"n3", "n4"}},
		{"no distance", 200 * time.Microsecond, []kevlard.NodeID{"n1", "n2"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := twoPipelines(t)
			for n, zone := range map[kevlard.NodeID]string{"n1": "east", "n2": "east", "n3": "west", "n4": "west", "o": "west"} {
				r.node(n).Zone = zone
			}
			r.see()
			began := r.now
			r.now = began.Add(100 * time.Microsecond)
			for _, n := range []kevlard.NodeID{"n3", "n4"} {
				r.say(n, protocol.Pong{Seq: 1, Sessions: 2, Free: 1000})
			}
			r.now = began.Add(tc.rtt)
			for _, n := range []kevlard.NodeID{"n1", "n2"} {
				r.say(n, protocol.Pong{Seq: 1, Free: 1000})
			}
			r.submit("s", 1, 2, 3)
			r.wantRoute("s", tc.want...)
		})
	}
}
