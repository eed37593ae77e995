package sampler

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
)

// TestLogprobs compares with probabilities computed the plain way: each exponential
// by itself, divided by their sum, for logits that allow it.
func TestLogprobs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		logits := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) float32 {
			if rapid.IntRange(0, 9).Draw(t, "excluded") == 0 {
				return float32(math.Inf(-1))
			}
			return float32(rapid.IntRange(-400, 400).Draw(t, "logit")) / 32 // some ties
		}), 1, 80).Draw(t, "logits")
		chosen := rapid.IntRange(0, len(logits)-1).Draw(t, "chosen")
		logits[chosen] = float32(rapid.IntRange(-12, 12).Draw(t, "of the chosen"))
		top := rapid.IntRange(0, kevlard.MaxTopLogprobs).Draw(t, "top")

		var total float64
		var order []int
		for i := len(logits) - 1; i >= 0; i-- {
			if p := math.Exp(float64(logits[i])); p > 0 {
				total += p
				order = append(order, i)
			}
		}
		slices.SortFunc(order, func(a, b int) int {
			if logits[a] != logits[b] {
				return int(math.Copysign(1, float64(logits[b]-logits[a])))
			}
			return a - b
		})
		near := func(what string, got float32, token int) {
			if want := math.Log(math.Exp(float64(logits[token])) / total); math.Abs(float64(got)-want) > 1e-5 {
				t.Fatalf("%s: token %d has %v, want %v", what, token, got, want)
			}
		}

		before := slices.Clone(logits)
		l := Logprobs(logits, kevlard.Token(chosen), top)
		if err := l.Check(); err != nil {
			t.Fatal(err)
		}
		near("chosen", l.Chosen, chosen)
		if want := min(top, len(order)); len(l.Top) != want {
			t.Fatalf("%d tokens, want %d", len(l.Top), want)
		}
		for i, e := range l.Top {
			if int(e.Token) != order[i] {
				t.Fatalf("rank %d is token %d, want %d", i, e.Token, order[i])
			}
			near("top", e.Logprob, order[i])
			if order[i] == chosen && e.Logprob != l.Chosen {
				t.Fatalf("the chosen token has %v as such and %v in the list", l.Chosen, e.Logprob)
			}
		}
		if !slices.Equal(before, logits) {
			t.Fatal("the logits were changed")
		}
		if again := Logprobs(logits, kevlard.Token(chosen), top); !reflect.DeepEqual(again, l) {
			t.Fatalf("again %+v, first %+v", again, l)
		}
	})
}

// TestLogprobsOfExtremes: nothing becomes infinite or positive, as JSON has no
// number for it.
func TestLogprobsOfExtremes(t *testing.T) {
	inf := float32(math.Inf(-1))
	for _, c := range []struct {
		logits []float32
		chosen kevlard.Token
		want   kevlard.Logprobs
	}{
		{[]float32{7}, 0, kevlard.Logprobs{Top: []kevlard.TokenLogprob{{Token: 0}}}},
		{[]float32{inf, 0, inf}, 1, kevlard.Logprobs{Top: []kevlard.TokenLogprob{{Token: 1}}}},
		{[]float32{3e38, -3e38}, 1, kevlard.Logprobs{Chosen: -math.MaxFloat32, Top: []kevlard.TokenLogprob{{Token: 0}, {Token: 1, Logprob: -math.MaxFloat32}}}},
		{[]float32{1000, 1000}, 1, kevlard.Logprobs{Chosen: -math.Ln2, Top: []kevlard.TokenLogprob{{Token: 0, Logprob: -math.Ln2}, {Token: 1, Logprob: -math.Ln2}}}},
	} {
		if got := Logprobs(c.logits, c.chosen, 5); !reflect.DeepEqual(*got, c.want) {
			t.Errorf("%v: %+v, want %+v", c.logits, *got, c.want)
		}
	}
}

// TestLogprobsIgnoreTheChoice: they are the model's, whatever bends the choice.
func TestLogprobsIgnoreTheChoice(t *testing.T) {
	logits := []float32{1, 3, 2}
	s := kevlard.Sampling{Temperature: 2, Bias: []kevlard.TokenBias{{Token: 0, Bias: 100}}, Repetition: 2, Ban: []kevlard.Token{1}, BanUntil: 9}
	token, err := Sample(logits, []kevlard.Token{1, 1}, s, 2)
	if err != nil || token != 0 {
		t.Fatalf("token %d, %v", token, err)
	}
	l := Logprobs(logits, token, 1)
	total := math.Exp(1) + math.Exp(3) + math.Exp(2)
	if want := float32(1 - math.Log(total)); math.Abs(float64(l.Chosen-want)) > 1e-6 || l.Top[0].Token != 1 {
		t.Errorf("%+v, want %v for the chosen token and token 1 as the likeliest", l, want)
	}
}

// TestSampleAllocatesNothing once its memory has grown: it runs for every token.
func TestSampleAllocatesNothing(t *testing.T) {
	logits := make([]float32, 1000)
	for i := range logits {
		logits[i] = float32(i % 37)
	}
	history := []kevlard.Token{1, 2, 3}
	for _, s := range []kevlard.Sampling{{}, {Temperature: 1}, {Temperature: 1, TopK: 40, TopP: 0.9, MinP: 0.01}, {Temperature: 1, TopP: 0.9, Repetition: 1.1}} {
		var m Sampler
		if n := testing.AllocsPerRun(20, func() {
			if _, err := m.Sample(logits, history, s, 3); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%+v: %v allocations", s, n)
		}
	}
}

func BenchmarkLogprobs(b *testing.B) {
	logits := make([]float32, 128256)
	for i := range logits {
		logits[i] = float32(i*7919%1000) / 100
	}
	b.ReportAllocs()
	for b.Loop() {
		Logprobs(logits, 5, kevlard.MaxTopLogprobs)
	}
}
