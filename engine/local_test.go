//go:build cgo

package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/model"
)

// TestLocal: generation equals the references, and sampling with a seed is the
// same through any number of stages and stops when told.
func TestLocal(t *testing.T) {
	m, err := model.Load(modelPath(t, "fairy-7m-q8_0.gguf"), "")
	if err != nil {
		t.Fatal(err)
	}
	ref := references(t)["fairy-7m-q8_0.gguf"][7]
	var sampled, penalized [][]kevlard.Token
	for _, k := range []int{1, 3} {
		l, err := OpenLocal(m, k, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		generate := func(prompt []kevlard.Token, n int, s kevlard.Sampling) (out []kevlard.Token, err error) {
			err = l.Generate(t.Context(), prompt, n, s, func(token kevlard.Token) bool {
				out = append(out, token)
				return len(out) < 40
			})
			return out, err
		}
		got, err := generate(ref.PromptIDs, 40, kevlard.Sampling{})
		if err != nil || !slices.Equal(got, ref.IDs[:40]) {
			t.Errorf("%d stages: %v (%v), want %v", k, got, err, ref.IDs[:40])
		}
		// A prompt of more than one chunk, stopped by emit before n.
		long := slices.Repeat(ref.IDs, 8)
		got, err = generate(long, 100, kevlard.Sampling{Temperature: 0.7, TopK: 40, TopP: 0.9, Seed: 42})
		if err != nil || len(got) != 40 || len(long) < localChunk {
			t.Errorf("%d stages: %d tokens (%v), want 40", k, len(got), err)
		}
		sampled = append(sampled, got)
		// With penalties the choice depends on the history: continuing from the middle,
		// as after a failover, gives the same tokens.
		n := len(ref.PromptIDs)
		p := kevlard.Sampling{Temperature: 0.9, Seed: 3, Repetition: 1.2, Presence: 0.5, Frequency: 0.2, Prompt: n, Ban: ref.IDs[:1], BanUntil: n + 30}
		got, err = generate(ref.PromptIDs, 40, p)
		if err != nil || len(got) != 40 || slices.Contains(got[:30], ref.IDs[0]) {
			t.Fatalf("%d stages, penalties: %v (%v)", k, got, err)
		}
		penalized = append(penalized, got)
		rest, err := generate(slices.Concat(ref.PromptIDs, got[:17]), 23, p)
		if err != nil || !slices.Equal(rest, got[17:]) {
			t.Errorf("%d stages, penalties from the middle: %v (%v), want %v", k, rest, err, got[17:])
		}
		if _, err := generate(long, 1024, kevlard.Sampling{}); err == nil || !strings.Contains(err.Error(), "room for 1024") {
			t.Errorf("too long: %v", err)
		}
		if _, err := generate(nil, 1, kevlard.Sampling{}); err == nil {
			t.Error("an empty prompt is accepted")
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("enough"))
		if err := l.Generate(ctx, long, 1, kevlard.Sampling{}, func(kevlard.Token) bool { return true }); err == nil || err.Error() != "enough" {
			t.Errorf("cancelled: %v", err)
		}
	}
	if !slices.Equal(sampled[0], sampled[1]) {
		t.Errorf("1 stage samples %v, 3 stages %v", sampled[0], sampled[1])
	}
	if !slices.Equal(penalized[0], penalized[1]) {
		t.Errorf("with penalties 1 stage samples %v, 3 stages %v", penalized[0], penalized[1])
	}
	if _, err := OpenLocal(m, 9, 1); err == nil || !strings.Contains(err.Error(), "stages is 9") {
		t.Errorf("9 stages of 8 layers: %v", err)
	}
}
