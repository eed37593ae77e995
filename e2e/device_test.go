package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// TestDeviceMissing is K77 as far as it goes without a GPU: a stage's device is not
// there. The daemon runs and tries again, says what it waits for, is not ready, and
// never computes on the CPU, which nobody asked for. Configured for the CPU, it does.
func TestDeviceMissing(t *testing.T) {
	s := newSingle(t, "gpuless")
	s.holds(t, 0, 8, nil)
	s.set("engine", "devices", []string{"cuda:0"})
	s.start(t)
	s.up(t)
	client := api.NewClient(s.socket())
	const reason = "[engine] devices asks for cuda:0, and there is only cpu"
	tries := map[string]bool{}
	eventually(t, readyWithin, func() error {
		st, err := client.Status(t.Context())
		if err != nil {
			return err
		}
		if st.Ready || len(st.Engines) > 0 {
			t.Fatalf("it serves without its device: %+v", st)
		}
		if !strings.Contains(st.Reason, reason) || len(st.Problems) == 0 {
			return fmt.Errorf("the reason is %q, the problems %+v", st.Reason, st.Problems)
		}
		tries[st.Reason] = true // it says when the next one comes, later each time
		if len(tries) < 3 {
			return fmt.Errorf("it has tried only %d times", len(tries))
		}
		return nil
	})
	resp, err := http.Get("http://" + s.addr(0) + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), reason) {
		t.Errorf("/readyz: %d %s, %v", resp.StatusCode, text, err)
	}
	out, _, code := kevlard(t, "--control", s.socket(), "status", "--check")
	if code != 1 || !strings.Contains(out, reason) {
		t.Errorf("status --check exits %d: %s", code, out)
	}
	ask := load.Request{Model: "fairy", Prompt: "Once upon a time", MaxTokens: 4, Seed: 1}
	mesh := load.NewClient("http://" + s.addr(0))
	defer mesh.CloseIdle()
	got := mesh.Stream(t.Context(), ask, nil)
	if e, ok := got.Err.(*load.APIError); !ok || e.Status != http.StatusServiceUnavailable {
		t.Errorf("a request: %q, %v: want 503", got.Text(), got.Err)
	}
	if p := s.processes(t); len(p) != 1 {
		t.Errorf("processes %v: want the daemon alone", p)
	}
	s.stop(t)

	s.set("engine", "devices", []string{"cpu"})
	s.start(t)
	s.up(t)
	eventually(t, readyWithin, func() error { return mesh.Stream(t.Context(), ask, nil).Err })
	s.stop(t)
}
