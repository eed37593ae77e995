package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// TestMan checks that the page has every visible verb and flag, no hidden one, and
// is the same each time.
func TestMan(t *testing.T) {
	page := program(t, nil, "", "man")
	if again := program(t, nil, "", "man"); page.code != 0 || page != again {
		t.Fatalf("exit %d, or two pages differ", page.code)
	}
	app := shell{env: environment{}}.app(nil, nil)
	visit(app.Commands, "", func(path string, c *cli.Command) {
		if len(c.Subcommands) == 0 && !strings.Contains(page.stdout, "\n.SS \""+roff(path)) {
			t.Errorf("%s is missing", path)
		}
		for _, f := range flagWords(c.Flags) {
			if !strings.Contains(page.stdout, `\fB`+roff(f)+`\fR`) {
				t.Errorf("%s %s is missing", path, f)
			}
		}
	})
	for _, hidden := range []string{`.SS "engine`, "no effect yet\n.TP\n", "`"} {
		if strings.Contains(page.stdout, hidden) {
			t.Errorf("%q shows", hidden)
		}
	}
	for _, line := range strings.Split(page.stdout, "\n") {
		if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && !strings.Contains(".TH .SH .SS .TP .PP .B .I .nf .fi", strings.Fields(line)[0]) {
			t.Errorf("not a request that the page uses: %q", line)
		}
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("groff is not installed: the page was not formatted")
	}
	cmd := exec.Command(groff, "-man", "-Tutf8", "-ww", "-z")
	cmd.Stdin = strings.NewReader(page.stdout)
	if text, err := cmd.CombinedOutput(); err != nil || len(text) > 0 {
		t.Errorf("groff: %v: %s", err, text)
	}
}

func TestKeygenAPI(t *testing.T) {
	r := program(t, nil, "", "keygen", "--api", "alice")
	if r.code != 0 || !strings.Contains(r.stdout, "key   kvl-") || !strings.Contains(r.stdout, "line  alice:") {
		t.Errorf("%+v", r)
	}
	r = program(t, nil, "", "keygen", "--api", "alice", "-o", "json")
	if r.code != 0 || !strings.Contains(r.stdout, `"line": "alice:`) {
		t.Errorf("%+v", r)
	}
	for _, args := range [][]string{{"--api", "a b"}, {"--api", ""}, {"--api", "a", "--out", "/nope"}} {
		if r := program(t, nil, "", append([]string{"keygen"}, args...)...); r.code != exitUsage || !strings.HasPrefix(r.stderr, "kevlard: flag --") {
			t.Errorf("%q: %+v", args, r)
		}
	}
}
