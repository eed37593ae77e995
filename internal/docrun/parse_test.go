package main

import (
	"reflect"
	"strings"
	"testing"
)

// block puts a document together without backticks in the source.
func block(lang, text string) string { return "Prose.\n```" + lang + "\n" + text + "```\n" }

func TestParse(t *testing.T) {
	doc := block("sh", "a && b\n\nc \\\n  d\n") + block("text", "what d says\n") +
		block("console", "$ e\none\ntwo\n$ f \\\n   g\n$ h\n") + block("toml", "x = 1\n")
	want := []step{
		{at: "D:3", command: "a && b"},
		{at: "D:5", command: "c \\\n  d", shown: "what d says"},
		{at: "D:14", command: "e", shown: "one\ntwo\n"},
		{at: "D:17", command: "f \\\n   g"},
		{at: "D:19", command: "h"},
		{at: "D:22", lang: "toml", text: "x = 1\n"},
	}
	if got, err := parse("D", doc); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v,\n%+v, want\n%+v", err, got, want)
	}
	for name, c := range map[string]struct{ doc, want string }{
		"no language":        {block("", "a\n"), "D:2: the block has no language"},
		"no end":             {"```sh\na\n", "D:1: the block has no end"},
		"output of nothing":  {block("text", "a\n"), "D:2: the text follows no command"},
		"two outputs":        {block("sh", "a\n") + block("text", "b\n") + block("text", "c\n"), "D:10: the text follows no command without output"},
		"output of a file":   {block("toml", "a\n") + block("text", "b\n"), "D:6: the text follows no command"},
		"no dollar at first": {block("console", "a\n"), `D:3: want a command behind "$ " first`},
	} {
		if _, err := parse("D", c.doc); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

func TestParseRules(t *testing.T) {
	r, err := parseRules("# a remark\n\nskip\t^systemctl \tno systemd\nbackground\tdev\t\n")
	if err != nil || len(r.list) != 2 || r.list[0].text != "no systemd" {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := r.find(ruleSkip, "kevlard systemctl x"); len(got) != 0 {
		t.Errorf("found %+v", got)
	}
	if err := r.unused(); err == nil || !strings.Contains(err.Error(), `skip "^systemctl " is for nothing`) {
		t.Errorf("%v", err)
	}
	if len(r.find(ruleSkip, "systemctl x")) != 1 || len(r.find(ruleBackground, "dev")) != 1 || r.unused() != nil {
		t.Errorf("not found, or found and unused: %v", r.unused())
	}
	for text, want := range map[string]string{
		"skip ^a because":  "line 1: want KIND, TAB, PATTERN, TAB, TEXT",
		"\nskip\ta\t":      "line 2: skip needs a text",
		"retry\ta\tb":      `line 1: kind "retry": want skip, save, before, after, background or again`,
		"skip\t(\tbecause": "line 1: error parsing regexp",
	} {
		if _, err := parseRules(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestCompare(t *testing.T) {
	for name, c := range map[string]struct {
		sample, output string
		want           string // "" for a match
	}{
		"equal":              {"a b\nc", "a b\nc\n", ""},
		"other numbers":      {"killed 25888 in 1.4 s", "killed 7 in 12 s", ""},
		"other columns":      {"NODE   PID\nnode-1 25888", "NODE     PID\nnode-1   1", ""},
		"folded":             {"{\"a\":\n\"b c\nd\"}", `{"a":"b c d"}`, ""},
		"rule of dashes":     {"--- kill -9 5485 ----", "--- kill -9 12 ------", ""},
		"ids":                {"cmpl-01M8N2KDENCEAHRQXKZZ9MGSG8", "cmpl-01M8N6F93B7PWQW98TE31C50W4", ""},
		"digest":             {"43b69f8c60a3", "8cffc3c1524e", ""},
		"long number":        {"1796003706123", "1796003", ""},
		"anything first":     {"...\nlast", "one\ntwo\nlast", ""},
		"anything between":   {"a\n...\nb", "a\nb", ""},
		"anything last":      {"a\n...", "a\nb\nc", ""},
		"other word":         {"a\nstate: alive\nc", "a\nstate: dead\nc", "line 2 of the sample is not what is printed: state: alive"},
		"no number":          {"took 1.4 s", "took s", "line 1 of the sample"},
		"word for a digest":  {"43b69f8c60a3 x", "unknown x", "line 1 of the sample"},
		"more":               {"a\nb", "a\nb\nc", "more is printed than the document shows"},
		"less":               {"a\nb", "a", "line 2 of the sample is not what is printed: b"},
		"pattern characters": {"[0,2) .* (x)?", "[0,2) abc (x)?", "line 1 of the sample"},
		"dots in a line":     {"a ... b", "a x b", "line 1 of the sample"},
	} {
		err := compare(c.sample, c.output)
		if c.want == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

// FuzzCompare: a sample is its own like, if it has no line "...".
func FuzzCompare(f *testing.F) {
	f.Add("a 1.5 -- 01M8N2KDENCEAHRQXKZZ9MGSG8 43b69f8c60a3\n\n$ ( [")
	f.Fuzz(func(t *testing.T, s string) {
		if strings.Contains(s, "...") || len(s) > 1000 || strings.ToValidUTF8(s, "") != s || strings.ContainsRune(s, '�') {
			return
		}
		if err := compare(s, s); err != nil {
			t.Error(err)
		}
	})
}
