package main

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestTellerFoldsWithoutChangingWords cuts a text into arbitrary pieces: whatever
// the pieces are, the words arrive in order, in lines that fit.
func TestTellerFoldsWithoutChangingWords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.StringMatching(`[a-zß"]{1,12}[,.]?`), 1, 60).Draw(t, "words")
		text := strings.Join(words, " ")
		var out strings.Builder
		teller := &teller{w: &out}
		for rest := []rune(text); len(rest) > 0; {
			n := rapid.IntRange(1, min(9, len(rest))).Draw(t, "piece")
			teller.text(string(rest[:n]))
			rest = rest[n:]
		}
		teller.note("")
		if got := strings.Fields(out.String()); strings.Join(got, " ") != text {
			t.Fatalf("got %q, want %q", got, text)
		}
		for line := range strings.Lines(out.String()) {
			if len(strings.TrimRight(line, "\n")) > demoWidth {
				t.Fatalf("line of %d bytes: %q", len(line), line)
			}
		}
	})
}

func TestVerdictSaysWhatScriptsLookFor(t *testing.T) {
	for _, c := range []struct {
		name       string
		r          demoReport
		has, lacks []string
	}{
		{
			"killed",
			demoReport{TokenExact: true, RecoveryMS: 93.4, Killed: &demoKill{Node: "node-3"}, Failovers: []demoPhase{{"reset", "node-3", 1, 2, 90, 208, 200}}},
			[]string{"\ntoken-exact: yes\n", "\nrecovery: 93 ms\n", "detect", "re-route", "restore", "90.0 ms  8 of 208 known tokens computed again"},
			[]string{"\x1b"},
		},
		{"not killed", demoReport{TokenExact: true}, []string{"token-exact: yes"}, []string{"recovery"}},
		{"different", demoReport{}, []string{"token-exact: no"}, []string{"yes"}},
	} {
		var out strings.Builder
		(&teller{w: &out}).verdict(c.r)
		for _, s := range c.has {
			if !strings.Contains(out.String(), s) {
				t.Errorf("%s: no %q in %q", c.name, s, out.String())
			}
		}
		for _, s := range c.lacks {
			if strings.Contains(out.String(), s) {
				t.Errorf("%s: %q in %q", c.name, s, out.String())
			}
		}
	}
}

func TestLineStandsBetweenTheText(t *testing.T) {
	var out strings.Builder
	teller := &teller{w: &out}
	teller.text("the little ")
	teller.line("kill -9 %d", 7)
	teller.text("girl ")
	teller.note("")
	rule := strings.Repeat("-", demoWidth-len("--- kill -9 7 "))
	if want := "the little\n--- kill -9 7 " + rule + "\ngirl "; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
