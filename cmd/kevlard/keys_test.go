package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kevlard/kevlard/daemon/report"
)

func TestKeys(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if r := program(t, nil, "", "keygen", "--out", secret); r.code != 0 {
		t.Fatal(r.stderr)
	}
	node := &scripted{keys: report.Keys{Nodes: []report.NodeKeys{
		{Node: "a", State: "alive", Secrets: []string{"0011", "2233"}, Configured: "2233"},
		{Node: "b", State: "dead", Secrets: []string{}, Error: "dead, not asked"},
	}}}
	socket := node.control(t)
	for _, c := range []struct {
		args, asked string
	}{{"keys list", "list "}, {"keys add " + secret, "add "}, {"keys use 2233", "use 2233"}, {"keys remove 0011", "remove 0011"}} {
		node.asked = nil
		r := program(t, nil, "", append(strings.Fields(c.args), "--control", socket)...)
		if r.code != 0 || !slices.Equal(node.asked, []string{c.asked}) {
			t.Errorf("%s: exit %d, asked %q, %s", c.args, r.code, node.asked, r.stderr)
		}
		for _, want := range []string{"a", "0011", "2233", "copy the secret in use", "dead, not asked"} {
			if !strings.Contains(r.stdout, want) {
				t.Errorf("%s: no %q in\n%s", c.args, want, r.stdout)
			}
		}
	}
	node.keys.Nodes[0].Error = "disk full"
	if r := program(t, nil, "", "keys", "use", "2233", "--control", socket); r.code != 1 || !strings.Contains(r.stderr, "not done on all") {
		t.Errorf("a member that failed: exit %d, %s", r.code, r.stderr)
	}
	for _, bad := range []string{"keys", "keys use", "keys list x", "keys add /nowhere", "keys add"} {
		if r := program(t, nil, "", append(strings.Fields(bad), "--control", socket)...); r.code != 2 {
			t.Errorf("%s: exit %d, want 2: %s", bad, r.code, r.stderr)
		}
	}
}
