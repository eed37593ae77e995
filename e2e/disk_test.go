package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// TestDiskFull runs a host whose data directory has no room left, and gets none and
// then some while it runs: it serves, it says what it cannot keep, no file is half
// written, and it catches up when there is room again.
func TestDiskFull(t *testing.T) {
	s := newSingle(t, "full")
	s.holds(t, 0, 8, nil)
	s.start(t)
	s.up(t)
	s.stop(t)
	seed := filepath.Join(s.dir, "seed.key")
	if err := os.Rename(filepath.Join(s.dir, "data", "node.key"), seed); err != nil {
		t.Fatal(err)
	}
	s.onTmpfs(t, "size=128k", `cp -p '`+seed+`' "$D/node.key" && head -c 1M /dev/zero 2>/dev/null >"$D/fill"`)
	s.start(t)
	s.up(t)
	client := load.NewClient("http://" + s.addr(0))
	defer client.CloseIdle()
	ask := load.Request{Model: "fairy", Prompt: "Once upon a time", MaxTokens: 8, Seed: 1, IgnoreEOS: true}
	eventually(t, readyWithin, func() error { return client.Stream(t.Context(), ask, nil).Err })

	// What its data directory holds, seen through its own mounts.
	data := fmt.Sprintf("/proc/%d/root%s", s.cmd.Process.Pid, s.conf["node"]["data_dir"])
	peer := newSingle(t, "peer")
	peer.joins(s)
	peer.start(t)
	peer.up(t)
	says := func(texts ...string) error {
		for _, text := range texts {
			if !strings.Contains(s.stderr.String(), text) {
				return fmt.Errorf("the log does not say %q", text)
			}
		}
		return nil
	}
	eventually(t, readyWithin, func() error {
		return says("digests are not kept for the next start", "the ring's addresses can't be remembered", "no space left on device")
	})
	if got := client.Stream(t.Context(), ask, nil); got.Err != nil {
		t.Errorf("it does not serve any more: %v", got.Err)
	}
	check := func() error {
		var errs []error
		err := filepath.WalkDir(data, func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() && e.Name() != "node.key" && e.Name() != "fill" && e.Name() != "peers.json" {
				errs = append(errs, fmt.Errorf("%s was left half way", path))
			}
			return err
		})
		return errors.Join(append(errs, err)...)
	}
	eventually(t, 10*time.Second, check) // a temporary file may be there for an instant

	remove(t, filepath.Join(data, "fill"))
	eventually(t, readyWithin, func() error {
		text, err := os.ReadFile(filepath.Join(data, "peers.json"))
		if err == nil && !json.Valid(text) {
			t.Fatalf("peers.json is not whole: %q", text)
		}
		if err == nil && !strings.Contains(string(text), `"peer"`) {
			err = fmt.Errorf("peers.json is %s", text)
		}
		return err
	})
	// The wrapper only waits for the agent.
	for _, p := range s.processes(t) {
		pid, line, _ := strings.Cut(p, ": ")
		if strings.HasPrefix(line, kevlardBin+" agent") {
			system(t, "kill", pid)
		}
	}
	if code := s.await(t, time.Minute); code != 0 {
		t.Errorf("exit code %d", code)
	}
	peer.stop(t)
	for _, p := range s.processes(t) {
		t.Errorf("left: %s", p)
	}
}
