package index

import (
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

// TestPrivateBlocksGoWithTheirSession: nobody else could use them.
func TestPrivateBlocksGoWithTheirSession(t *testing.T) {
	for salt, cached := range map[string]int64{PrivateSalt + "s": 0, "shared:a": 2 * 4 * 8} {
		x := New(Config{BlockTokens: 4, Bytes: 1 << 20})
		stage := stageOf(1, 0, 2)
		x.Offer(1, "src", protocol.Offer{
			Session: "s", Fence: fence(1), Owner: "o", OwnerBoot: "o.1", Stage: stage, Class: "toy", CellBytes: 8, Salt: salt,
			Tokens: count(10), Positions: 20,
		})
		x.Arrived(1, "src", 1, protocol.Rows{
			Session: "s", Fence: fence(1), Stage: stage, Class: "toy", CellBytes: 8, Tokens: count(10), Sums: make([]uint64, 10),
		}, true)
		x.Stored(1, 1)
		x.Close("o", "s", 0, kevlard.Fence{Epoch: 1, Term: 1})
		if u := x.Usage(); u.Copies != 0 || u.Bytes != cached || u.CachedBytes != cached {
			t.Errorf("salt %q: %+v, want %d bytes", salt, u, cached)
		}
	}
}
