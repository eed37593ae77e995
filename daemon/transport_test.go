package daemon

import (
	"errors"
	"log/slog"
	"strings"
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

// TestFallsBackOnce wants TCP where RDMA cannot be used, such as for want of locked memory,
// and one line that says why; with RDMA alone KV is copied by nothing, and the node says so.
func TestFallsBackOnce(t *testing.T) {
	lack := errors.New("mlx5_0 port 1: memory cannot be registered for RDMA: this process may lock 65536 bytes: set LimitMEMLOCK=infinity in its unit")
	for _, c := range []struct{ transport, line string }{
		{TransportAuto, "KV goes over TCP: RDMA cannot be used"},
		{TransportRDMA, "no KV is copied"},
	} {
		var log strings.Builder
		d := &Daemon{cfg: Config{BulkTransport: c.transport, BulkPlain: true}, copies: copies{sender: &sender{}}, log: slog.New(slog.NewTextHandler(&log, nil))}
		tcp := &struct{ mover.Mover }{}
		err := d.bindMover(Deps{
			Mover: func(mover.Handler) (mover.Mover, string, error) { return tcp, "", nil },
			RDMA:  func(RDMAUse) (RDMA, error) { return nil, lack },
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), c.line) || !strings.Contains(log.String(), "LimitMEMLOCK=infinity") {
			t.Errorf("%s: %d lines in the log:\n%s", c.transport, lines, log.String())
		}
		insist := c.transport == TransportRDMA
		if got := d.copies.sender.mover; insist != (got == nil) || !insist && got != mover.Mover(tcp) {
			t.Errorf("%s: KV is sent by %v", c.transport, got)
		}
		if got := d.unfit(); insist != strings.Contains(got, "LimitMEMLOCK") || !insist && got != "" {
			t.Errorf("%s: not ready because of %q", c.transport, got)
		}
		if _, err := d.answerRDMA(t.Context(), "b", nil); !errors.Is(err, lack) {
			t.Errorf("%s: peers are told %v", c.transport, err)
		}
	}
}

// TestOneBandwidth wants [kv] bandwidth to cap what goes over TCP and over RDMA together.
func TestOneBandwidth(t *testing.T) {
	for _, rate := range []int64{0, 1 << 20} {
		d := &Daemon{cfg: Config{BulkTransport: TransportRDMA, BulkBandwidth: rate}, copies: copies{sender: &sender{}}, log: slog.New(slog.DiscardHandler)}
		var use RDMAUse
		err := d.bindMover(Deps{
			Mover: func(mover.Handler) (mover.Mover, string, error) { return nil, "", nil },
			RDMA:  func(u RDMAUse) (RDMA, error) { use = u; return nil, errors.New("no card") },
		}, nil)
		if err != nil || use.Pacer != d.transports.pacer || (use.Pacer == nil) != (rate == 0) {
			t.Errorf("%d bytes/s: %v, RDMA is paced by %p, TCP by %p", rate, err, use.Pacer, d.transports.pacer)
		}
	}
}
