package daemon

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/kevlard/kevlard/kvstream/mover"
)

// TestUnencryptedIsAsked wants RDMA, which is not encrypted, only where an admin has said
// that the fabric is trusted or has named RDMA.
func TestUnencryptedIsAsked(t *testing.T) {
	for _, c := range []struct {
		transport string
		plain     bool
		tried     bool
	}{
		{"", false, false},
		{TransportAuto, false, false},
		{TransportAuto, true, true},
		{TransportRDMA, false, true},
		{TransportTCP, true, false},
	} {
		tried := false
		d := &Daemon{cfg: Config{BulkTransport: c.transport, BulkPlain: c.plain}, copies: copies{sender: &sender{}}, log: slog.New(slog.DiscardHandler)}
		err := d.bindMover(Deps{
			Mover: func(mover.Handler) (mover.Mover, string, error) { return nil, "", nil },
			RDMA:  func(RDMAUse) (RDMA, error) { tried = true; return nil, errors.New("no card") },
		}, nil)
		if err != nil || tried != c.tried {
			t.Errorf("transport %q, plain %v: RDMA tried: %v, %v", c.transport, c.plain, tried, err)
		}
	}
}
