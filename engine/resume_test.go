//go:build cgo

package engine

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kevlard/kevlard"
)

// move copies the leading n positions of a session from the cells of one chain to
// those of another, as a failover does.
func move(t *testing.T, from []*Stage, cell int, to []*Stage, at, n int) {
	t.Helper()
	for i := range from {
		buf := make([]byte, n*from[i].info.CellBytes)
		if err := from[i].Read(cell, n, buf); err != nil {
			t.Fatal(err)
		}
		if err := to[i].Write(at, n, buf); err != nil {
			t.Fatal(err)
		}
	}
}

// goOn computes a session from position p on, until it has n tokens.
func goOn(t *testing.T, stages []*Stage, cell int, tokens []kevlard.Token, p, n int, s kevlard.Sampling) []kevlard.Token {
	t.Helper()
	out := slices.Clone(tokens)
	for len(out) < n {
		r := chain(t, stages, Part{Cell: cell, Pos: p, N: len(out) - p, Tokens: out[p:], Sample: true, Sampling: s})
		p = len(out)
		out = append(out, r.Sampled[0].Token)
	}
	return out
}

// TestTransferredSessions is K46: 300 requests with fixed seeds, one after another in
// the same cells, go on elsewhere from transferred KV, each at a place of its own. All
// are token for token those that were not transferred.
func TestTransferredSessions(t *testing.T) {
	const requests, tokens, places = 300, 8, 64
	path := modelPath(t, "fairy-7m-q8_0.gguf")
	here, there := openChain(t, path, 2, 2*places), openChain(t, path, 2, 2*places)
	rng := rand.New(rand.NewPCG(46, 0))
	for i := range requests {
		prompt := make([]kevlard.Token, 4+rng.IntN(28))
		for k := range prompt {
			prompt[k] = kevlard.Token(rng.IntN(2048))
		}
		s := kevlard.Sampling{Seed: uint64(i)}
		if i%2 == 1 {
			s.Temperature = 0.8
		}
		cell, at := rng.IntN(places), rng.IntN(places)
		want := goOn(t, here, cell, prompt, 0, len(prompt)+tokens, s)
		p := 1 + rng.IntN(len(want)-2)
		known := max(len(prompt), p+1)
		move(t, here, cell, there, at, p)
		if got := goOn(t, there, at, want[:known], p, len(want), s); !slices.Equal(got, want) {
			t.Fatalf("request %d, %d of %d tokens transferred: %v, without a transfer %v", i, p, len(want), got[known:], want[known:])
		}
	}
}

// nearTie returns tokens after which the two best logits are closer than most, and the
// better one's token.
func nearTie(t *testing.T, stages []*Stage, most float32) ([]kevlard.Token, kevlard.Token) {
	t.Helper()
	const least = 16 // positions, so that there is something to resume
	for _, ref := range references(t)["fairy-7m-q8_0.gguf"] {
		all := slices.Concat(ref.PromptIDs, ref.IDs)
		for pos, token := range all {
			best, second := -1, -1
			var logits []float32
			step(t, stages, []Part{{Pos: pos, N: 1, Tokens: []kevlard.Token{token}}}, func(_, _, _ int, _ []byte) {}, func(_ int, l []float32) { logits = l })
			for i, v := range logits {
				switch {
				case best < 0 || v > logits[best]:
					best, second = i, best
				case second < 0 || v > logits[second]:
					second = i
				}
			}
			if gap := logits[best] - logits[second]; pos >= least && gap < most {
				t.Logf("after %d tokens, %d and %d are %v apart", pos+1, best, second, gap)
				return all[:pos+1], kevlard.Token(best)
			}
		}
	}
	t.Fatalf("no two logits of the references are within %v", most)
	return nil, 0
}

// TestNearTie is K49: where the two best logits are within 0.05, a session that is
// killed and resumed 50 times chooses the same token each time, whatever was kept of it,
// how the rest is cut, how many stages compute it and with whom it shares a batch.
func TestNearTie(t *testing.T) {
	const resumes, cells, place, company = 50, 1024, 300, 700
	path := modelPath(t, "fairy-7m-q8_0.gguf")
	var chains [][]*Stage
	for _, k := range []int{1, 2, 4} {
		chains = append(chains, openChain(t, path, k, cells))
	}
	tokens, want := nearTie(t, chains[0], 0.05)
	for _, c := range chains { // what is kept
		chain(t, c, Part{N: len(tokens), Tokens: tokens})
	}
	rng := rand.New(rand.NewPCG(49, 0))
	for i := range resumes {
		c, pos := chains[rng.IntN(len(chains))], rng.IntN(len(tokens))
		if pos > 0 {
			move(t, c, 0, c, place, pos)
		}
		var r Result
		for kept, from := pos, pos; from < len(tokens); from = pos {
			n := 1 + rng.IntN(len(tokens)-from)
			parts := []Part{{Cell: place, Pos: from, N: n, Tokens: tokens[from : from+n], Sample: from+n == len(tokens)}}
			if other := rng.IntN(20); other > 0 {
				parts = append(parts, Part{Cell: company, N: other, Tokens: tokens[:other]})
			}
			if rng.IntN(2) == 0 {
				slices.Reverse(parts)
			}
			r = chain(t, c, parts...)
			if pos += n; pos == len(tokens) && r.Sampled[0].Token != want {
				t.Errorf("resume %d, %d of %d positions kept, %d stages: token %d, want %d", i, kept, len(tokens), len(c), r.Sampled[0].Token, want)
			}
		}
	}
}
