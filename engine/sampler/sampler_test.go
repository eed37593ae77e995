package sampler

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
)

// TestPhilox: the known answers that the authors publish with Random123
// (kat_vectors, philox4x32, 10 rounds).
func TestPhilox(t *testing.T) {
	for _, c := range []struct {
		ctr  [4]uint32
		key  [2]uint32
		want [4]uint32
	}{
		{want: [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{
			[4]uint32{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
			[2]uint32{0xffffffff, 0xffffffff},
			[4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
		},
		{
			[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
			[2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		},
	} {
		if got := philox(c.ctr, c.key); got != c.want {
			t.Errorf("philox(%x, %x) = %x, want %x", c.ctr, c.key, got, c.want)
		}
	}
}

// plain is the definition, written without regard for speed: sort all, cut, cut,
// cut, draw.
func plain(logits []float32, history []kevlard.Token, s kevlard.Sampling, pos int) kevlard.Token {
	logits = slices.Clone(logits)
	for i := range logits {
		logits[i] = plainLogit(logits[i], kevlard.Token(i), history, s, pos)
	}
	var ids []int
	best := math.Inf(-1)
	for i, v := range logits {
		if !math.IsInf(float64(v), -1) {
			ids = append(ids, i)
			best = max(best, float64(v))
		}
	}
	sorted := func() {
		slices.SortStableFunc(ids, func(a, b int) int {
			switch {
			case logits[a] > logits[b]:
				return -1
			case logits[a] < logits[b]:
				return 1
			}
			return a - b
		})
	}
	if s.Temperature == 0 {
		sorted()
		return kevlard.Token(ids[0])
	}
	weight := func(i int) float64 {
		return math.Exp((float64(logits[i]) - best) / float64(s.Temperature))
	}
	total := func() (t float64) {
		for _, i := range ids {
			t += weight(i)
		}
		return t
	}
	if s.TopK > 0 && s.TopK < len(ids) {
		sorted()
		ids = ids[:s.TopK]
	}
	if s.TopP > 0 && s.TopP < 1 {
		limit, mass := float64(s.TopP)*total(), 0.0
		sorted()
		for n, i := range ids {
			if mass += weight(i); mass >= limit {
				ids = ids[:n+1]
				break
			}
		}
	}
	if s.MinP > 0 {
		ids = slices.DeleteFunc(ids, func(i int) bool { return weight(i) < float64(s.MinP) })
	}
	target, mass := Uniform(s.Seed, uint64(pos))*total(), 0.0
	for _, i := range ids {
		if mass += weight(i); target < mass {
			return kevlard.Token(i)
		}
	}
	return kevlard.Token(ids[len(ids)-1])
}

// plainLogit is the definition of bias, penalties and bans for one token.
func plainLogit(v float32, token kevlard.Token, history []kevlard.Token, s kevlard.Sampling, pos int) float32 {
	if math.IsInf(float64(v), -1) {
		return v
	}
	for _, b := range s.Bias {
		if b.Token == token {
			v += b.Bias
		}
	}
	seen, generated := false, 0
	for i, t := range history {
		if back := len(history) - i; t == token && back <= 8192 {
			seen = true
			if pos-back >= s.Prompt {
				generated++
			}
		}
	}
	if seen && s.Repetition != 0 && v > 0 {
		v /= s.Repetition
	} else if seen && s.Repetition != 0 {
		v *= s.Repetition
	}
	if generated > 0 {
		v -= float32(float32(generated) * s.Frequency)
		v -= s.Presence
	}
	if pos < s.BanUntil && slices.Contains(s.Ban, token) {
		return float32(math.Inf(-1))
	}
	return v
}

func anySampling(t *rapid.T) kevlard.Sampling {
	s := kevlard.Sampling{
		Temperature: rapid.SampledFrom([]float32{0, 1e-30, 0.1, 0.7, 1, 5, 100}).Draw(t, "temperature"),
		TopK:        rapid.IntRange(0, 50).Draw(t, "top_k"),
		TopP:        rapid.Float32Range(0, 1).Draw(t, "top_p"),
		MinP:        rapid.SampledFrom([]float32{0, 0, 0.01, 0.2, 1}).Draw(t, "min_p"),
		Seed:        rapid.Uint64().Draw(t, "seed"),
		Repetition:  rapid.SampledFrom([]float32{0, 0, 1, 1.3, 0.5}).Draw(t, "repetition"),
		Presence:    rapid.SampledFrom([]float32{0, 0, -2, 0.7}).Draw(t, "presence"),
		Frequency:   rapid.SampledFrom([]float32{0, 0, -0.3, 1.1}).Draw(t, "frequency"),
		Prompt:      rapid.IntRange(0, 60).Draw(t, "prompt"),
		BanUntil:    rapid.IntRange(0, 60).Draw(t, "ban until"),
	}
	s.Bias = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) kevlard.TokenBias {
		return kevlard.TokenBias{Token: rapid.Int32Range(0, 90).Draw(t, "token"), Bias: rapid.SampledFrom([]float32{-100, -1, 0.5, 7}).Draw(t, "bias")}
	}), 0, 4).Draw(t, "bias")
	s.Ban = rapid.SliceOfN(rapid.Int32Range(1, 90), 0, 4).Draw(t, "ban")
	return s
}

// TestAgainstPlain: the same token as the definition, whatever the parameters,
// with ties and excluded tokens, from one Sampler used again and again.
func TestAgainstPlain(t *testing.T) {
	var m Sampler
	rapid.Check(t, func(t *rapid.T) {
		logits := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) float32 {
			if rapid.IntRange(0, 9).Draw(t, "excluded") == 0 {
				return float32(math.Inf(-1))
			}
			return float32(rapid.IntRange(-40, 40).Draw(t, "logit")) / 4 // many ties
		}), 1, 80).Draw(t, "logits")
		logits[0] = 1 // never banned
		s := anySampling(t)
		history := rapid.SliceOfN(rapid.Int32Range(0, 90), 0, 60).Draw(t, "history")
		pos := len(history)
		before := slices.Clone(logits)
		got, err := m.Sample(logits, history, s, pos)
		if err != nil {
			t.Fatal(err)
		}
		if want := plain(logits, history, s, pos); got != want {
			t.Fatalf("token %d, want %d", got, want)
		}
		if again, err := Sample(logits, Recent(history, s), s, pos); err != nil || again != got {
			t.Fatalf("from the recent history token %d (%v), first %d", again, err, got)
		}
		if !slices.Equal(logits, before) {
			t.Fatal("the logits were changed")
		}
	})
}

// TestDistribution compares counts over positions with the probabilities, by
// chi-square at a level that one run in a million passes; the seed is fixed.
func TestDistribution(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	logits := make([]float32, 64)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64() * 2)
	}
	for _, s := range []kevlard.Sampling{
		{Temperature: 1, Seed: 1},
		{Temperature: 0.7, TopK: 10, Seed: 2},
		{Temperature: 1.5, TopP: 0.8, Seed: 3},
		{Temperature: 1, MinP: 0.1, Seed: 4},
	} {
		const draws = 40000
		count := map[kevlard.Token]float64{}
		for pos := range draws {
			token, err := Sample(logits, nil, s, pos)
			if err != nil {
				t.Fatal(err)
			}
			count[token]++
		}
		// The kept set is what was ever drawn: with these weights each kept token of
		// 40,000 draws is expected at least 5 times or is lumped together.
		total, best := 0.0, float32(math.Inf(-1))
		for _, v := range logits {
			best = max(best, v)
		}
		weight := func(v float32) float64 { return math.Exp(float64(v-best) / float64(s.Temperature)) }
		for token := range count {
			total += weight(logits[token])
		}
		chi, cells, restWant, restGot := 0.0, -1, 0.0, 0.0
		for token, got := range count {
			want := weight(logits[token]) / total * draws
			if want < 5 {
				restWant, restGot = restWant+want, restGot+got
				continue
			}
			chi += (got - want) * (got - want) / want
			cells++
		}
		if restWant > 5 {
			chi += (restGot - restWant) * (restGot - restWant) / restWant
			cells++
		}
		// Wilson and Hilferty: chi-square beyond z = 4.75 is one in a million.
		k := float64(cells)
		limit := k * math.Pow(1-2/(9*k)+4.75*math.Sqrt(2/(9*k)), 3)
		if chi > limit || cells < 5 {
			t.Errorf("%+v: chi-square %.1f over %d degrees, limit %.1f", s, chi, cells, limit)
		}
	}
}

// TestUniform: in [0,1), and different for neighbours in seed and position.
func TestUniform(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed, pos := rapid.Uint64().Draw(t, "seed"), rapid.Uint64().Draw(t, "pos")
		u := Uniform(seed, pos)
		if u < 0 || u >= 1 {
			t.Fatalf("uniform %v", u)
		}
		if u == Uniform(seed+1, pos) || u == Uniform(seed, pos+1) || u == Uniform(seed+1<<32, pos) || u == Uniform(seed, pos+1<<32) {
			t.Fatalf("a neighbour of seed %d, position %d has the same number", seed, pos)
		}
	})
}

// TestErrors: what can't be sampled is said, naming the field or the logit.
func TestErrors(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	ok := []float32{1, 2}
	for _, c := range []struct {
		logits []float32
		s      kevlard.Sampling
		want   string
	}{
		{[]float32{1, nan}, kevlard.Sampling{}, "logit 1 of 2 is NaN"},
		{[]float32{inf, 1}, kevlard.Sampling{Temperature: 1}, "logit 0 of 2 is +Inf"},
		{[]float32{-inf, -inf}, kevlard.Sampling{}, "none of 2"},
		{nil, kevlard.Sampling{}, "none of 0"},
		{ok, kevlard.Sampling{Temperature: -1}, "temperature"},
		{ok, kevlard.Sampling{Temperature: nan}, "temperature"},
		{ok, kevlard.Sampling{Temperature: inf}, "temperature"},
		{ok, kevlard.Sampling{TopK: -1}, "top_k"},
		{ok, kevlard.Sampling{TopP: 1.5}, "top_p"},
		{ok, kevlard.Sampling{TopP: nan}, "top_p"},
		{ok, kevlard.Sampling{MinP: -0.1}, "min_p"},
		{ok, kevlard.Sampling{Repetition: -1}, "repetition_penalty is -1: want 0.01 to 100"},
		{ok, kevlard.Sampling{Repetition: nan}, "repetition_penalty"},
		{ok, kevlard.Sampling{Presence: 2.5}, "presence_penalty is 2.5: want -2 to 2"},
		{ok, kevlard.Sampling{Frequency: -inf}, "frequency_penalty"},
		{ok, kevlard.Sampling{Prompt: -1}, "prompt"},
		{ok, kevlard.Sampling{Bias: make([]kevlard.TokenBias, kevlard.MaxBias+1)}, "logit_bias is 1025 entries long: want at most 1024"},
		{ok, kevlard.Sampling{Bias: []kevlard.TokenBias{{Token: 1, Bias: 101}}}, "logit_bias is 101 for token 1: want -100 to 100"},
		{ok, kevlard.Sampling{Bias: []kevlard.TokenBias{{Token: -1}}}, "logit_bias"},
		{ok, kevlard.Sampling{Ban: make([]kevlard.Token, kevlard.MaxBan+1)}, "ban is 65 tokens long"},
		{ok, kevlard.Sampling{Ban: []kevlard.Token{-2}}, "ban is for token -2"},
		{ok, kevlard.Sampling{BanUntil: -1}, "ban_until"},
		{ok, kevlard.Sampling{Ban: []kevlard.Token{0, 1}, BanUntil: 1}, "none of 2"},
	} {
		if _, err := Sample(c.logits, nil, c.s, 0); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v %+v: error %v, want one with %q", c.logits, c.s, err, c.want)
		}
	}
}

// TestBan: a banned token is chosen from BanUntil on and never before it, even by
// the greedy choice.
func TestBan(t *testing.T) {
	s := kevlard.Sampling{Ban: []kevlard.Token{2, 2, 7}, BanUntil: 10}
	for pos := range 20 {
		got, err := Sample([]float32{1, 3, 9, 2}, nil, s, pos)
		want := kevlard.Token(1)
		if pos >= 10 {
			want = 2
		}
		if err != nil || got != want {
			t.Errorf("position %d: token %d (%v), want %d", pos, got, err, want)
		}
	}
}

// TestWindow: what is older than the window changes nothing, and the whole history
// and its recent part give the same token.
func TestWindow(t *testing.T) {
	s := kevlard.Sampling{Presence: 2, Repetition: 2}
	history := make([]kevlard.Token, Window+1)
	for i := range history {
		history[i] = 3
	}
	history[0] = 1
	logits := []float32{1, 1.5, 0, 9}
	for _, c := range []struct {
		history []kevlard.Token
		want    kevlard.Token
	}{{history, 3}, {history[:Window], 3}, {append(history, 1), 3}} {
		got, err := Sample(logits, c.history, s, len(c.history))
		recent, err2 := Sample(logits, Recent(c.history, s), s, len(c.history))
		if err != nil || err2 != nil || got != c.want || recent != got {
			t.Errorf("token %d and %d (%v, %v), want %d", got, recent, err, err2, c.want)
		}
	}
	logits[3] = -1
	for n, want := range map[int]kevlard.Token{Window: 0, Window + 1: 1} { // 1 is forgotten in the second
		if got, err := Sample(logits, history[:n], s, n); err != nil || got != want {
			t.Errorf("%d tokens: token %d (%v), want %d", n, got, err, want)
		}
	}
}

// TestExtremes: arithmetic that leaves the range of float32 excludes no token and
// makes no infinity.
func TestExtremes(t *testing.T) {
	logits := []float32{-3e38, 3e38, float32(math.Inf(-1))}
	history := []kevlard.Token{0, 1, 2}
	for _, s := range []kevlard.Sampling{{Repetition: 100}, {Repetition: 0.01}, {Repetition: 0.01, Frequency: -2, Temperature: 1}} {
		if got, err := Sample(logits, history, s, 3); err != nil || got != 1 {
			t.Errorf("%+v: token %d (%v), want 1", s, got, err)
		}
	}
	s := kevlard.Sampling{Repetition: 100, Ban: []kevlard.Token{1}, BanUntil: 4}
	if got, err := Sample(logits, history, s, 3); err != nil || got != 0 {
		t.Errorf("token %d (%v), want 0", got, err)
	}
}

func BenchmarkSample(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	logits := make([]float32, 128256)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64() * 2)
	}
	for name, s := range map[string]kevlard.Sampling{
		"greedy": {}, "penalties": {Repetition: 1.1, Presence: 1}, "temperature": {Temperature: 1}, "top-k": {Temperature: 0.7, TopK: 40, TopP: 0.9}, "top-p": {Temperature: 0.7, TopP: 0.9},
	} {
		b.Run(name, func(b *testing.B) {
			var m Sampler
			b.ReportAllocs()
			history := make([]kevlard.Token, 4096)
			for i := range history {
				history[i] = kevlard.Token(i * 17)
			}
			pos := len(history)
			for b.Loop() {
				if _, err := m.Sample(logits, history, s, pos); err != nil {
					b.Fatal(err)
				}
				pos++
			}
		})
	}
}
