package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// follow runs a document in a new directory and returns what was reported.
func follow(t *testing.T, doc, ruleText string, set map[string]string) (report string, err error) {
	t.Helper()
	steps, err := parse("D", doc)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := parseRules(ruleText)
	if err != nil {
		t.Fatal(err)
	}
	sh, err := newShell(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	r := &runner{shell: sh, rules: rules, set: set, out: &out}
	err = errors.Join(r.all(steps), sh.close())
	return out.String(), err
}

func TestFollow(t *testing.T) {
	doc := block("sh", "mkdir d && cd d\nx=1 # stays\n") +
		block("console", "$ echo \"$x\"; pwd | grep -o '/d$'; cat\n2\n/d\n$ cat f VERSION\nkey = 7\nbuilt 3\n") +
		block("toml", "key = 1\n") + block("json", "{}\n") + block("sh", "systemctl start\n")
	rules := "before\t^cat f\techo key = 5 >f && echo built 1 >1.2.3\nsave\t^key\tg\nafter\t^cat f\ttest -e f\nskip\t^systemctl\tno systemd\n"
	report, err := follow(t, doc, rules, map[string]string{"VERSION": "1.2.3"})
	if err != nil {
		t.Fatalf("%v\n%s", err, report)
	}
	for _, want := range []string{
		"run      cat f 1.2.3", "prose    echo key", "then     test -e f", "saved    g",
		"4 commands run, 2 outputs as shown, 2 blocks or commands not run",
		"not run: D:20 a block of json: nothing says what to do with it", "not run: D:25 systemctl start: no systemd",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("no %q in\n%s", want, report)
		}
	}
}

func TestFollowFails(t *testing.T) {
	for name, c := range map[string]struct{ doc, rules, want string }{
		"exit code":        {block("sh", "true\necho why; false\n"), "", "D:4: echo why; false: exit code 1. Printed was:\nwhy\n"},
		"other output":     {block("console", "$ echo a\nb\n"), "", "D:3: echo a: line 1 of the sample is not what is printed: b"},
		"before":           {block("sh", "true\n"), "before\ttrue\techo no; exit 3\n", "the shell has ended"},
		"after":            {block("sh", "true\n"), "after\ttrue\ttest -e none\n", "test -e none: exit code 1"},
		"unused rule":      {block("sh", "true\n"), "skip\tnothing\twhy\n", "the rule skip \"nothing\" is for nothing"},
		"background ended": {block("sh", "echo too soon\n"), "background\techo\ttest -e none\n", "it has ended. Printed was:\ntoo soon\n"},
		"bad Ctrl-C":       {block("sh", "trap 'exit 4' INT; touch here; while :; do sleep 0.01; done\n"), "background\ttrap\ttest -e here\n", "exit code 4 after Ctrl-C"},
	} {
		report, err := follow(t, c.doc, c.rules, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s\n%s", name, err, c.want, report)
		}
	}
}

// TestFollowBackground: it is awaited, stays while the rest runs, and gets Ctrl-C.
func TestFollowBackground(t *testing.T) {
	ended := filepath.Join(t.TempDir(), "ended")
	doc := block("console", "$ serve() { trap \"touch "+ended+"; exit 0\" INT; echo ready; touch up; while :; do sleep 0.01; done; }; serve\nready\n$ test -e up -a ! -e "+ended+"\n") +
		block("console", "$ echo . >>n; wc -l <n; test $(wc -l <n) -ge 3\n3\n")
	report, err := follow(t, doc, "background\tserve\ttest -e up\nagain\twc\tit counts\n", nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, report)
	}
	if _, err := os.Stat(ended); err != nil || !strings.Contains(report, "Ctrl-C") {
		t.Errorf("%v\n%s", err, report)
	}
}

func TestUsage(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	rules, doc := file("rules", "skip\tno\twhy\n"), file("doc", block("sh", "true\n"))
	for _, c := range []struct {
		args []string
		want int
	}{
		{nil, exitUsage},
		{[]string{"-rules", rules}, exitUsage},
		{[]string{"-rules", rules, "-set", "novalue", doc}, exitUsage},
		{[]string{"-rules", filepath.Join(dir, "none"), doc}, exitUsage},
		{[]string{"-rules", file("bad", "skip\n"), doc}, exitUsage},
		{[]string{"-rules", rules, file("bare", block("", "a\n"))}, exitUsage},
		{[]string{"-rules", rules, "-dir", filepath.Join(dir, "none"), doc}, exitFailed},
		{[]string{"-rules", rules, "-dir", dir, doc}, exitFailed}, // the rule is for nothing
		{[]string{"-rules", file("empty", ""), "-dir", dir, doc}, 0},
	} {
		if got := run(t.Context(), c.args); got != c.want {
			t.Errorf("docrun %q: exit code %d, want %d", c.args, got, c.want)
		}
	}
}
