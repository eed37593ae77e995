package kvbench

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/kevlard/kevlard/rdma"
	"github.com/kevlard/kevlard/rdma/rail"
)

// TestRDMA measures RDMA and TCP on one machine, which for make test-rdma is an emulated
// host with Soft-RoCE. The ratio says what the emulation costs and nothing of cards.
func TestRDMA(t *testing.T) {
	cards, err := rdma.Open(rail.Want{})
	if errors.Is(err, rdma.ErrNoDevice) && os.Getenv("RDMA_REQUIRED") == "" {
		t.Skipf("no RDMA here: %v: run it by scripts/rdma/exec", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cards.Close(); err != nil {
			t.Error(err)
		}
	})
	o := Options{Sizes: []int{4 << 10, 64 << 10, 1 << 20, 4 << 20}, Conns: 2, Rounds: 3, Each: 500 * time.Millisecond, Say: t.Logf}
	results, err := RunRDMA(t.Context(), o, cards.Devices, rail.Want{})
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != len(o.Sizes) {
		t.Fatalf("%d results", len(results))
	}
	for i, r := range results {
		if r.Transport != "rdma" || r.Piece != o.Sizes[i] || r.Speed <= 0 || r.Ceiling <= 0 || r.TCP <= 0 || r.ToTCP <= 0 {
			t.Errorf("result %d: %+v", i, r)
		}
		t.Logf("pieces of %d bytes: RDMA/TCP %.2f", r.Piece, r.ToTCP)
	}
}
