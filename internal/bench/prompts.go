package bench

import (
	"fmt"
	"math/rand/v2"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/internal/devmesh/load"
	"github.com/kevlard/kevlard/internal/measure"
	"github.com/kevlard/kevlard/model"
)

// beginnings are the sentences that prompts are made of.
func beginnings() []string {
	return []string{
		"Once upon a time there was a little girl who lived with her mother in a small house.",
		"The old king had three sons, and the youngest was called the Simpleton.",
		"In a deep dark forest there lived a wolf who was always hungry.",
		"The fox said to the cat, I know a hundred arts and you know only one.",
		"There was once a poor miller who had nothing left but his mill and a great apple tree.",
		"The princess looked out of the window and saw the ships far away on the blue water.",
		"A soldier came marching along the road: left, right, left, right.",
		"Far away in the land where the swallows fly in winter there lived a king.",
	}
}

// Prompter writes prompts of an exact number of tokens.
type Prompter struct{ tokenizer *model.Tokenizer }

// NewPrompter reads the tokenizer of a model.
func NewPrompter(m *model.Manifest) (Prompter, error) {
	f, err := m.Open()
	if err != nil {
		return Prompter{}, err
	}
	defer f.Close()
	t, err := model.NewTokenizer(f)
	if err != nil {
		return Prompter{}, fmt.Errorf("tokenizer of %s: %w", m.Path, err)
	}
	return Prompter{t}, nil
}

// Prompt returns n tokens of text. Prompts of different seeds part early, so that
// none is the beginning of another.
func (p Prompter) Prompt(n int, seed uint64) ([]int32, error) {
	rng := rand.New(rand.NewPCG(seed, 1))
	sentences := beginnings()
	// The first word is the seed itself: shuffles may agree on the first sentence.
	text := fmt.Sprintf("Story %d. ", seed)
	var ids []kevlard.Token
	for round := 0; len(ids) < n; round++ {
		if round > n {
			return nil, fmt.Errorf("a text of %d bytes has only %d tokens: want %d", len(text), len(ids), n)
		}
		for _, i := range rng.Perm(len(sentences)) {
			text += sentences[i] + " "
		}
		var err error
		if ids, err = p.tokenizer.Encode(text, true); err != nil {
			return nil, fmt.Errorf("encode a prompt: %w", err)
		}
	}
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(ids[i])
	}
	return out, nil
}

// Contexts is a range of context lengths in tokens.
type Contexts struct{ Min, Max int }

// Requests returns different requests, greedy and at temperature 0.8 in turn, whose
// contexts are within the range while hosts break: they differ in the length of
// their prompts. Each asks for tokens, or for as many as fit below limit positions.
func (p Prompter) Requests(name string, c Contexts, tokens, limit int) ([]load.Request, error) {
	lo, hi := promptRange(c)
	out := make([]load.Request, variants)
	for i, n := range measure.Spread(lo, hi, variants) {
		ids, err := p.Prompt(n, uint64(i))
		if err != nil {
			return nil, err
		}
		out[i] = load.Request{Model: name, PromptIDs: ids, MaxTokens: min(tokens, limit-n), Seed: uint64(i), IgnoreEOS: true}
		if i%2 == 1 {
			out[i].Temperature = 0.8
		}
	}
	return out, nil
}

// promptRange returns the shortest and longest prompt for a range of contexts. A host
// breaks when a stream has shown a few tokens.
func promptRange(c Contexts) (lo, hi int) {
	const usual = 32 // tokens that most streams have shown then
	lo = max(c.Min-minShown, 4)
	return lo, max(c.Max-minShown-usual, lo)
}

// ContextsError says that other contexts would fit.
type ContextsError struct {
	Contexts Contexts
	Limit    int // the model's context
}

// Error implements error.
func (e *ContextsError) Error() string {
	return fmt.Sprintf("contexts from %d to %d: want %d <= MIN <= MAX <= %d (the model's context is %d, and %d tokens must still fit)",
		e.Contexts.Min, e.Contexts.Max, minShown+4, e.Limit-minLeft, e.Limit, minLeft)
}

// Check returns a ContextsError unless streams with these contexts fit a model.
func (c Contexts) Check(limit int) error {
	if c.Min < minShown+4 || c.Max < c.Min || c.Max > limit-minLeft {
		return &ContextsError{c, limit}
	}
	return nil
}
