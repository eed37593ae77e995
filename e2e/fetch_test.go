package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh/load"
	"github.com/kevlard/kevlard/model/fairy"
)

// TestModelFetch has a node with an empty disk fetch a model from two, kills it in the
// middle, and one of the two after that: it goes on from what it had, and serves what it
// fetched when the last node that was given the file is gone.
func TestModelFetch(t *testing.T) {
	one := newSingle(t, "one") // each takes ports that are free
	one.holds(t, 0, 8, nil)
	one.start(t)
	one.up(t)
	two := newSingle(t, "two")
	if err := os.WriteFile(filepath.Join(two.dir, "models", "other-name.gguf"), fairy.GGUF(), 0o644); err != nil {
		t.Fatal(err)
	}
	two.joins(one)
	two.start(t)
	two.up(t)
	me := newSingle(t, "me")
	me.set("models", "fetch_bandwidth", 1<<20)
	me.joins(one)
	me.start(t)
	client := me.up(t)
	linked := func() error {
		s, err := client.Status(t.Context())
		up := 0
		for _, l := range s.Links {
			if l.Up {
				up++
			}
		}
		if err == nil && (up < 2 || !s.Ready) {
			err = fmt.Errorf("%d links are up, ready: %t %s", up, s.Ready, s.Reason)
		}
		return err
	}
	eventually(t, readyWithin, linked)
	ask := load.Request{Model: "fairy", Prompt: "Once upon a time", MaxTokens: 24, Seed: 3, IgnoreEOS: true}
	first := load.NewClient("http://" + one.addr(0))
	defer first.CloseIdle()
	want := first.Stream(t.Context(), ask, nil)
	if want.Err != nil {
		t.Fatal(want.Err)
	}

	if _, errs, code := kevlard(t, "--control", me.socket(), "model", "fetch", "no-such-model"); code != 2 || !strings.Contains(errs, "no-such-model") {
		t.Errorf("a model that is not: exit %d, %s", code, errs)
	}
	interrupted := exec.CommandContext(t.Context(), kevlardBin, "--control", me.socket(), "model", "fetch", "fairy")
	if err := interrupted.Start(); err != nil {
		t.Fatal(err)
	}
	var before report.Fetch
	eventually(t, time.Minute, func() error {
		s, err := client.Status(t.Context())
		if err != nil {
			return err
		}
		if len(s.Fetches) != 1 || s.Fetches[0].Bytes < s.Fetches[0].Total/4 || s.Fetches[0].Total == 0 {
			return fmt.Errorf("fetches %+v, want one that has got somewhere", s.Fetches)
		}
		before = s.Fetches[0]
		return nil
	})
	me.kill()
	if err := interrupted.Wait(); err == nil {
		t.Error("the verb says that all is well, although its daemon died")
	}
	two.kill()
	if before.Bytes == before.Total {
		t.Fatal("it was not in the middle")
	}

	me.start(t)
	client = me.up(t)
	eventually(t, readyWithin, func() error {
		if err := linked(); err != nil && !strings.HasPrefix(err.Error(), "1 links are up, ready: true") {
			return err
		}
		return nil
	})
	text, errs, code := kevlard(t, "--control", me.socket(), "-o", "json", "model", "fetch", "fairy")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	var after report.Fetch
	if err := json.Unmarshal([]byte(text), &after); err != nil {
		t.Fatal(err)
	}
	if after.Bytes != after.Total || after.Total != before.Total || after.Fetched > before.Total-before.Bytes || after.Path == "" {
		t.Errorf("%d of %d bytes were there, and %d were fetched then: %s", before.Bytes, before.Total, after.Fetched, text)
	}
	t.Logf("%d of %d bytes before the kill, %d fetched after", before.Bytes, before.Total, after.Fetched)
	if out, errs, code := kevlard(t, "model", "verify", after.Path); code != 0 {
		t.Errorf("verify: exit %d: %s%s", code, out, errs)
	}
	if out, errs, code := kevlard(t, "model", "ls", "--config", me.config(t)); code != 0 || !strings.Contains(out, "fetched") {
		t.Errorf("ls: exit %d: %s%s", code, out, errs)
	}

	// It becomes a stage of what it fetched.
	me.stop(t)
	one.kill()
	me.set("node", "role", "host")
	me.set("models", "assign", []map[string]any{{"model": "fairy", "lo": 0, "hi": 8}})
	me.start(t)
	me.up(t)
	mine := load.NewClient("http://" + me.addr(0))
	defer mine.CloseIdle()
	var got load.Result
	eventually(t, readyWithin, func() error {
		got = mine.Stream(t.Context(), ask, nil)
		return got.Err
	})
	if got.Text() != want.Text() {
		t.Errorf("it says %q, want %q", got.Text(), want.Text())
	}
}
