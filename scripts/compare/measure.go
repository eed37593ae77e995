package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// server is one side.
type server interface {
	// stream answers a prompt greedily with at most tokens tokens.
	stream(ctx context.Context, prompt string, tokens int) (answer, error)
	close() error
}

// answer is what a client saw of one stream.
type answer struct {
	sent, first, last time.Time
	prompt, tokens    int
}

// sample is one run: streams answered at the same time.
type sample struct {
	rate   float64       // tokens/s after the first of each stream
	ttft   time.Duration // mean
	prompt int           // tokens of the prompts, mean
	tokens int           // of all answers
}

// together sends all prompts at once.
func together(ctx context.Context, s server, prompts []string, tokens int) (sample, error) {
	answers := make([]answer, len(prompts))
	errs := make([]error, len(prompts))
	done := make(chan struct{})
	for i, p := range prompts {
		go func() {
			answers[i], errs[i] = s.stream(ctx, p, tokens)
			done <- struct{}{}
		}()
	}
	for range prompts {
		<-done
	}
	if err := errors.Join(errs...); err != nil {
		return sample{}, err
	}
	return sum(answers)
}

func sum(answers []answer) (sample, error) {
	var out sample
	first, last := answers[0].first, answers[0].last
	later := 0
	for _, a := range answers {
		if a.tokens < 2 {
			return out, fmt.Errorf("an answer of %d tokens tells no rate", a.tokens)
		}
		out.ttft += a.first.Sub(a.sent) / time.Duration(len(answers))
		out.prompt += a.prompt
		out.tokens += a.tokens
		later += a.tokens - 1
		if a.first.Before(first) {
			first = a.first
		}
		if a.last.After(last) {
			last = a.last
		}
	}
	out.prompt /= len(answers)
	out.rate = float64(later) / last.Sub(first).Seconds()
	return out, nil
}

// row is a line of the table. Adjacent samples of a and b are a pair.
func row(model string, threads, streams int, a, b []sample) string {
	rate := func(s sample) float64 { return s.rate }
	ttft := func(s sample) float64 { return s.ttft.Seconds() * 1000 }
	prompt := func(s sample) float64 { return float64(s.prompt) }
	return fmt.Sprintf("| %s | %d | %.0f | %d | %.1f | %.1f | %s | %.1f | %.1f | %s |",
		strings.TrimSuffix(filepath.Base(model), ".gguf"), threads, quantile(each(a, prompt), 0.5), streams,
		quantile(each(a, rate), 0.5), quantile(each(b, rate), 0.5), ratios(a, b, rate),
		quantile(each(a, ttft), 0.5), quantile(each(b, ttft), 0.5), ratios(a, b, ttft))
}

func each(s []sample, f func(sample) float64) []float64 {
	out := make([]float64, len(s))
	for i := range s {
		out[i] = f(s[i])
	}
	return out
}

func ratios(a, b []sample, f func(sample) float64) string {
	r := make([]float64, len(a))
	for i := range r {
		r[i] = f(a[i]) / f(b[i])
	}
	return fmt.Sprintf("%.2f (%.2f-%.2f)", quantile(r, 0.5), quantile(r, 0.25), quantile(r, 0.75))
}

// quantile interpolates between the neighbours of rank q*(n-1).
func quantile(v []float64, q float64) float64 {
	v = slices.Sorted(slices.Values(v))
	at := q * float64(len(v)-1)
	i := int(at)
	if i+1 == len(v) {
		return v[i]
	}
	return v[i] + (at-float64(i))*(v[i+1]-v[i])
}

// prompts makes n texts of so many words, from seed on. They begin unlike, so that
// no server finds one of them in its cache.
func prompts(seed uint64, n, words int) []string {
	list := strings.Fields(`king queen forest castle little old golden bird river stone
		mother daughter soldier princess night moon garden apple wolf fox miller bread door window
		walked said looked found carried sang slept and the a was with under over to of in he she they it`)
	out := make([]string, n)
	for i := range out {
		rng := rand.New(rand.NewPCG(seed+uint64(i), 7))
		text := make([]string, words)
		for k := range text {
			text[k] = list[rng.IntN(len(list))]
		}
		out[i] = strings.Join(text, " ")
	}
	return out
}

// wordsFor returns how many words make a prompt of about so many tokens.
func wordsFor(ctx context.Context, s server, tokens int) (int, error) {
	const words = 50
	a, err := s.stream(ctx, prompts(1<<32, 1, words)[0], 2)
	if err != nil {
		return 0, fmt.Errorf("count the tokens of a prompt: %w", err)
	}
	return max(1, tokens*words/max(1, a.prompt)), nil
}
