package api

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// cut is the obvious twin of stopMatcher: it looks at every prefix of the text.
func cut(text string, stops []string) (string, bool) {
	for end := range len(text) + 1 {
		longest := 0
		for _, s := range stops {
			if strings.HasSuffix(text[:end], s) {
				longest = max(longest, len(s))
			}
		}
		if longest > 0 {
			return text[:end-longest], true
		}
	}
	return text, false
}

// TestStopMatcher checks that the pieces of a text do not matter, that no part of a
// stop gets out, and that no more is held back than could become one.
func TestStopMatcher(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringOfN(rapid.SampledFrom([]rune("ab")), 1, 5, -1)
		stops := rapid.SliceOfN(word, 0, 3).Draw(t, "stops")
		pieces := rapid.SliceOfN(rapid.StringOfN(rapid.SampledFrom([]rune("abc")), 0, 4, -1), 0, 12).Draw(t, "pieces")
		want, wantFound := cut(strings.Join(pieces, ""), stops)
		m := stopMatcher{stops: stops}
		got, found, fed := "", false, ""
		for _, p := range pieces {
			var out string
			out, found = m.push(p)
			got, fed = got+out, fed+p
			if found {
				break
			}
			if got+m.held != fed {
				t.Fatalf("after %q: out %q and held %q lose something", fed, got, m.held)
			}
			for _, s := range stops {
				if m.held != "" && strings.HasPrefix(s, m.held) && m.held != s {
					goto justified
				}
			}
			if m.held != "" {
				t.Fatalf("after %q: %q is held, which begins none of %q", fed, m.held, stops)
			}
		justified:
		}
		if !found {
			got += m.flush()
		}
		if got != want || found != wantFound {
			t.Fatalf("%q with stops %q: got %q %v, want %q %v", pieces, stops, got, found, want, wantFound)
		}
	})
}
