package e2e

import (
	"encoding/json"
	"syscall"
	"testing"

	"github.com/kevlard/kevlard/client"
	"github.com/kevlard/kevlard/internal/devmesh"
)

// TestOwnerDies kills the gateway that owns the sessions of a stream. Its client goes on
// at the other gateway, which takes the sessions over, and misses nothing.
func TestOwnerDies(t *testing.T) {
	m := start(t, devmesh.Options{Nodes: 2, Stages: 2, Gateways: 2})
	owner, other := m.Gateway(1), m.Gateway(2)
	for i, body := range resumable(m) {
		body["stream"] = true
		var want answer
		if err := client.New(other.APIURL()).Stream(t.Context(), "/v1/completions", body, want.add); err != nil {
			t.Fatal(err)
		}
		var got answer
		events, killed := 0, false
		err := client.New(owner.APIURL(), other.APIURL()).Stream(t.Context(), "/v1/completions", body, func(data json.RawMessage) error {
			if events++; events == 6 {
				killed = true
				if err := owner.Kill(syscall.SIGKILL); err != nil {
					return err
				}
			}
			return got.add(data)
		})
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if !killed || !got.same(want) {
			t.Errorf("request %d, killed %v: got\n%+v\nwant\n%+v", i, killed, got, want)
		}
		m.restart(t, owner)
	}
	if n := m.sum(t, "kevlard_takeovers_total"); n == 0 {
		t.Error("no session was taken over: the streams ended before their owner died")
	}
}
