package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReadTakesTimesAndCounts(t *testing.T) {
	var a answer
	err := a.read(strings.NewReader(`{"response":"Once"}
{"response":" upon"}
{"response":"","done":true,"prompt_eval_count":7,"eval_count":2}
`))
	if err != nil || a.prompt != 7 || a.tokens != 2 || a.first.IsZero() || a.last.Before(a.first) {
		t.Errorf("%+v, %v", a, err)
	}
	for text, want := range map[string]string{
		`{"response":"Once"}`:                  "broke off",
		`{"error":"model runner has stopped"}`: "model runner has stopped",
	} {
		if err := new(answer).read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestSumOverStreams(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	s, err := sum([]answer{
		{sent: at(0), first: at(10), last: at(900), prompt: 100, tokens: 101},
		{sent: at(0), first: at(30), last: at(1010), prompt: 110, tokens: 101},
	})
	if err != nil || s.rate != 200 || s.ttft != 20*time.Millisecond || s.prompt != 105 || s.tokens != 202 {
		t.Errorf("%+v, %v: want 200 tok/s, 20 ms", s, err)
	}
	if _, err := sum([]answer{{tokens: 1}}); err == nil {
		t.Error("a single token gave a rate")
	}
}

func TestRowPairsRuns(t *testing.T) {
	a := []sample{{rate: 100, ttft: 10 * time.Millisecond, prompt: 99}, {rate: 300, ttft: 10 * time.Millisecond, prompt: 99}, {rate: 200, ttft: 30 * time.Millisecond, prompt: 99}}
	b := []sample{{rate: 100, ttft: 20 * time.Millisecond}, {rate: 100, ttft: 20 * time.Millisecond}, {rate: 100, ttft: 20 * time.Millisecond}}
	const want = "| m | 2 | 99 | 4 | 200.0 | 100.0 | 2.00 (1.50-2.50) | 10.0 | 20.0 | 0.50 (0.50-1.00) |"
	if got := row("dir/m.gguf", 2, 4, a, b); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestPromptsBeginUnlike(t *testing.T) {
	texts := prompts(3, 20, 12)
	begins := map[string]bool{}
	for _, p := range texts {
		words := strings.Fields(p)
		if len(words) != 12 {
			t.Fatalf("%q has %d words, want 12", p, len(words))
		}
		begins[strings.Join(words[:2], " ")] = true
	}
	if len(begins) < 19 || !slices.Equal(texts, prompts(3, 20, 12)) {
		t.Errorf("%d beginnings of 20 texts, or not the same texts twice", len(begins))
	}
}

func TestParseNamesTheFlag(t *testing.T) {
	_, err := parse([]string{"-threads", "1,x", "-pairs", "1", "-ollama", "o"})
	for _, want := range []string{"-threads", "-pairs", "-models"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}
