package e2e

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/kevlard/kevlard/internal/devmesh"
)

// TestPenaltiesSurvive kills the host of the last stage, which samples, at token 300 of
// streams whose choices depend on all tokens before: the standby has the history too.
func TestPenaltiesSurvive(t *testing.T) {
	const tokens, killAt = 600, 300 // the rest gives the kill time to hit
	m := start(t, fourHosts())
	for name, temperature := range map[string]string{"greedy": "0", "sampled": "0.8"} {
		t.Run(name, func(t *testing.T) {
			body := func(penalties string) string {
				return fmt.Sprintf(`{"model":%q,"stream":true,"ignore_eos":true,"max_tokens":%d,"prompt":"Once upon a time","temperature":%s,"seed":9,"logprobs":1%s}`,
					m.ModelName(), tokens, temperature, penalties)
			}
			penalized := body(`,"repetition_penalty":1.3,"presence_penalty":0.4,"frequency_penalty":0.2`)
			want := m.logprobs(t, "/v1/completions", penalized, nil)[0]
			if len(want.legacy) != tokens {
				t.Fatalf("%d tokens unbroken, want %d", len(want.legacy), tokens)
			}
			if plain := m.logprobs(t, "/v1/completions", body(""), nil)[0]; plain.text == want.text {
				t.Fatal("the penalties change nothing")
			}
			var victim *devmesh.Node
			at := time.Now()
			got := m.logprobs(t, "/v1/completions", penalized, func(n int) {
				if n >= killAt && victim == nil {
					at, victim = time.Now(), m.running(t, 1)
					if err := victim.Kill(syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
				}
			})[0]
			if got.text != want.text || got.reason != want.reason || !slices.Equal(got.legacy, want.legacy) {
				t.Errorf("%d tokens (%s): %q\nunbroken %d (%s): %q", len(got.legacy), got.reason, got.text, len(want.legacy), want.reason, want.text)
			}
			if n := m.recoveries(t, got.sessions, at); n == 0 {
				t.Error("the session did not fail over: nothing was shown")
			}
			m.restart(t, victim)
		})
	}
}
