package daemon_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/membership"
)

// keysOf asks a node for the secrets of all.
func keysOf(t *testing.T, m *member, do string, secret []byte, id string) report.Keys {
	t.Helper()
	k, err := m.Keys(t.Context(), do, secret, id)
	if err != nil {
		t.Fatalf("keys %s: %v", do, err)
	}
	for _, n := range k.Nodes {
		if n.State == "alive" && n.Error != "" {
			t.Fatalf("keys %s on %s: %s", do, n.Node, n.Error)
		}
	}
	return k
}

// TestKeysAreChanged changes the secret of a running ring from one of its nodes, with
// a node down (K33).
func TestKeysAreChanged(t *testing.T) {
	r := newRing(t)
	a, b, c := r.start("a"), r.start("b"), r.start("c")
	r.until("all see all", func() bool {
		return len(a.Members().Nodes) == 3 && len(b.Members().Nodes) == 3 && len(c.Members().Nodes) == 3
	})
	connected := func(m *member, n int) bool {
		up := 0
		for _, l := range m.Status().Links {
			if l.Up {
				up++
			}
		}
		return up == n
	}
	r.until("all are connected", func() bool { return connected(a, 2) && connected(b, 2) && connected(c, 2) })
	before, after := a.cfg.Secret, bytes.Repeat([]byte{9}, membership.SecretSize)
	old, fresh := membership.SecretID(before), membership.SecretID(after)

	var f *kevlard.Failure
	if _, err := a.Keys(t.Context(), "use", nil, fresh); !errors.As(err, &f) || f.Status != 404 {
		t.Errorf("use of an unknown secret: %v", err)
	}
	r.kill(c)
	r.until("the others see it dead", func() bool { return stateOf(a, "c") == "dead" && stateOf(b, "c") == "dead" })
	keysOf(t, a, "add", after, "")
	if _, err := a.Keys(t.Context(), "remove", nil, old); !errors.As(err, &f) || f.Status != 409 || !strings.Contains(f.Message, "uses it") {
		t.Errorf("remove of the secret in use: %v", err)
	}
	keysOf(t, b, "use", nil, fresh)
	k := keysOf(t, a, "remove", nil, old)
	for _, n := range k.Nodes {
		switch {
		case n.Node == "c":
			if n.State != "dead" || n.Error == "" {
				t.Errorf("the dead node: %+v", n)
			}
		case !slices.Equal(n.Secrets, []string{fresh}) || n.Configured != old:
			t.Errorf("%+v, want only %s in use", n, fresh)
		}
	}

	// A restart with the old secret in its configuration takes the one in use from the
	// data directory.
	r.kill(b)
	b = r.run(b.cfg)
	r.until("b is back", func() bool { return stateOf(a, "b") == "alive" && connected(b, 1) && connected(a, 1) })

	// The one that was down knows only the old one: it stays out, and gets in once its
	// configuration has the new one.
	c = r.run(c.cfg)
	_, err := c.Join(t.Context(), []string{a.GossipAddr()})
	if !errors.As(err, &f) || f.Code != "wrong_secret" {
		t.Errorf("join with the old secret: %v", err)
	}
	if stateOf(a, "c") != "dead" || stateOf(c, "a") != "" {
		t.Errorf("a shows c as %q, c shows a as %q", stateOf(a, "c"), stateOf(c, "a"))
	}
	keysOf(t, c, "add", after, "")
	keysOf(t, c, "use", nil, fresh)
	r.until("c is let in", func() bool { return stateOf(a, "c") == "alive" && connected(c, 2) })
}

func TestSecretsOfTheDataDirectory(t *testing.T) {
	dir := t.TempDir()
	one, two, three := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32), bytes.Repeat([]byte{3}, 32)
	want := func(configured []byte, want ...[]byte) {
		t.Helper()
		got, err := daemon.Secrets(dir, configured)
		if err != nil || !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("%x, %v, want %x", got, err, want)
		}
	}
	want(one, one)
	path := filepath.Join(dir, "keyring.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"version": 1, "configured": "` + membership.SecretID(one) + `", "secrets": ["AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=", "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="]}`)
	want(one, two, one) // as the verbs left it
	want(two, two, one) // the new one was copied to the configuration
	want(three, three)  // the operator's word
	write(`{"version": 1}`)
	if _, err := daemon.Secrets(dir, one); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a broken file: %v", err)
	}
}
