package e2e

import (
	"testing"

	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// TestEmptyDiskBecomesAStage starts eight hosts of which one has no model file: it fetches
// the layers that the plan gives it, serves them, and its own API knows the tokenizer.
func TestEmptyDiskBecomesAStage(t *testing.T) {
	m := start(t, devmesh.Options{Nodes: 8, Auto: true, Empty: 1, Cells: stormStreams * 1024})
	m.whole(t, 2)
	empty := m.Node(8)
	s, err := empty.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Engines) == 0 {
		t.Fatalf("%s holds nothing: %+v", empty.Name(), s.Problems)
	}
	fetched := load.NewClient(empty.APIURL())
	defer fetched.CloseIdle()
	n, err := fetched.Metric(t.Context(), `kevlard_weights_bytes_total{direction="fetched"}`)
	if err != nil || n == 0 {
		t.Errorf("%v bytes were fetched, %v", n, err)
	}
	t.Logf("%s holds %d stages and fetched %d bytes of %d", empty.Name(), len(s.Engines), int64(n), m.Model().Bytes())
	requests := storyRequests(m, 4, 40)
	want := m.unbroken(t, requests)
	there := &mesh{m.Mesh, fetched}
	eventually(t, readyWithin, func() error { return fetched.Stream(t.Context(), requests[0], nil).Err })
	judge(t, there.storm(t.Context(), requests).wait(t), want)
}
