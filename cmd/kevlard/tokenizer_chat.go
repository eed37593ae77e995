package main

import (
	"errors"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/model"
	"github.com/kevlard/kevlard/model/chat"
)

// openChat makes the chat template of a model file, or the plain one where the file
// has none. One that cannot be parsed fails chats and nothing else.
func openChat(f *model.File, t *model.Tokenizer) (api.Chat, error) {
	text := f.ChatTemplate()
	if text == "" {
		return templateChat{chat.Plain()}, nil
	}
	tokens, err := f.Strings("tokenizer.ggml.tokens")
	if err != nil {
		return nil, err
	}
	name := func(id kevlard.Token) string {
		if id < 0 || int(id) >= len(tokens) {
			return "" // the model has no such token
		}
		return tokens[id]
	}
	template, err := chat.New(text, name(t.BOS()), name(t.EOS()))
	if err != nil {
		return brokenChat{err}, nil
	}
	return templateChat{template}, nil
}

// templateChat is an api.Chat.
type templateChat struct{ *chat.Template }

// Render implements api.Chat.
func (c templateChat) Render(messages []api.Message, addGenerationPrompt bool) (string, error) {
	list := make([]chat.Message, len(messages))
	for i, m := range messages {
		list[i] = chat.Message(m)
	}
	text, err := c.Template.Render(list, addGenerationPrompt)
	if refused, ok := errors.AsType[*chat.RefusedError](err); ok {
		return "", &api.RefusedError{Reason: refused.Reason}
	}
	return text, err
}

// brokenChat is an api.Chat whose template could not be parsed.
type brokenChat struct{ err error }

// Render implements api.Chat.
func (c brokenChat) Render([]api.Message, bool) (string, error) { return "", c.err }
