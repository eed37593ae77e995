package main

import (
	"fmt"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/model"
)

// tokenizer gives the API a model's tokenizer and chat template.
type tokenizer struct {
	*model.Tokenizer
	eog  []kevlard.Token
	chat api.Chat
}

// openTokenizer reads the tokenizer and the chat template out of a model file.
func openTokenizer(m *model.Manifest) (tokenizer, error) {
	f, err := m.Open()
	if err != nil {
		return tokenizer{}, err
	}
	defer f.Close()
	t, err := model.NewTokenizer(f)
	if err != nil {
		return tokenizer{}, fmt.Errorf("tokenizer of %s: %w", m.Path, err)
	}
	out := tokenizer{Tokenizer: t}
	for id := range kevlard.Token(t.VocabSize()) {
		if t.IsEndOfGeneration(id) {
			out.eog = append(out.eog, id)
		}
	}
	if out.chat, err = openChat(f, t); err != nil {
		return tokenizer{}, fmt.Errorf("chat template of %s: %w", m.Path, err)
	}
	return out, nil
}

// Encode implements api.Tokenizer.
func (t tokenizer) Encode(text string) ([]kevlard.Token, error) {
	return t.Tokenizer.Encode(text, true)
}

// NewDecoder implements api.Tokenizer.
func (t tokenizer) NewDecoder() api.Decoder { return t.Tokenizer.NewDecoder() }

// EndOfGeneration implements api.Tokenizer.
func (t tokenizer) EndOfGeneration() []kevlard.Token { return t.eog }
