package daemon_test

import (
	"slices"
	"testing"
)

// TestTurnsAndTenants (K61) plays a conversation whose turns go to other daemons each time: what
// was computed is found. A tenant that sends the same finds nothing, and its answers are
// the same.
func TestTurnsAndTenants(t *testing.T) {
	t.Parallel()
	r, gateway := copied(t, "memory")
	owners := []*member{gateway, r.all()[0], r.all()[1]}
	j := newJob(8, 30)
	j.name, j.req.Salt = "", "key:a"
	had := 0
	for i, owner := range owners {
		cached := 0
		r.until("the next turn finds what the last one computed", func() bool {
			got := generate(t.Context(), owner, j, nil)
			exact(t, j, got)
			if cached = got.end.Cached; i == 0 && cached != 0 {
				t.Errorf("%d tokens of a first turn are cached", cached)
			}
			return t.Failed() || cached >= had
		})
		other := j
		other.req.Salt = "key:b"
		if i > 0 {
			other.req.Prompt = slices.Clone(j.req.Prompt)
			other.req.Salt += string(rune('0' + i)) // one that has sent nothing yet
		}
		got := generate(t.Context(), owner, other, nil)
		exact(t, other, got)
		if got.end.Cached != 0 {
			t.Errorf("another tenant finds %d tokens", got.end.Cached)
		}
		got = generate(t.Context(), owner, j, nil)
		had = len(j.req.Prompt) + len(got.tokens) - 1
		j.req.Prompt = slices.Concat(j.req.Prompt, got.tokens, prompt(90+i, 17))
	}
	r.idle()
	if n := r.sum("kevlard_prefix_reused_tokens_total"); n < float64(had) {
		t.Errorf("%v tokens were reused in all, want at least %d", n, had)
	}
	if n := r.sum("kevlard_kv_bytes kind=prefix tier=ram"); n == 0 {
		t.Error("no prefixes are kept")
	}
}
