//go:build rdma

package rdma

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/mover/movertest"
	"github.com/kevlard/kevlard/rdma/rail"
)

// rail of the guest on which a device reaches itself by an address that is no loopback one.
const guestDevice = "rxe1"

// cards opens the guest's device; where there is no RDMA the test is skipped, or fails if
// RDMA_REQUIRED says that there must be.
func cards(t *testing.T) *Cards {
	t.Helper()
	c, err := Open(rail.Want{Devices: []string{guestDevice}})
	if errors.Is(err, ErrNoDevice) && os.Getenv("RDMA_REQUIRED") == "" {
		t.Skipf("no RDMA here: %v: run it by scripts/rdma/exec", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// onCards makes a network's nodes use real verbs.
func onCards(t *testing.T, net *testNet) {
	c := cards(t)
	net.device = func(kevlard.NodeID) Device { return c.Devices[0] }
	// A card answers nothing for a queue pair that it does not know.
	net.silence = func(q Queue) {
		if err := q.(*cardQueue).pair.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestCardConformance(t *testing.T) {
	cards(t)
	movertest.Run(t, func(t *testing.T, stall time.Duration) movertest.Network {
		net := newTestNet(t)
		onCards(t, net)
		net.tune = func(c *Config) { c.Stall = stall }
		return net.network()
	})
}
