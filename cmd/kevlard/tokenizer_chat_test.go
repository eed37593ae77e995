package main

import (
	"errors"
	"testing"

	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/model"
	"github.com/kevlard/kevlard/model/chat"
)

// TestOpenChat checks the chat of a model file without a template, and that its
// prompt has one BOS at most.
func TestOpenChat(t *testing.T) {
	m, err := model.Load(fairyFile(t), "")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := openTokenizer(m)
	if err != nil {
		t.Fatal(err)
	}
	text, err := tok.chat.Render([]api.Message{{Role: "user", Content: "Hi"}}, true)
	if want := "User: Hi\n\nAssistant:"; text != want || err != nil {
		t.Errorf("got %q, %v, want %q", text, err, want)
	}
	ids, err := tok.Encode(text)
	if err != nil || len(ids) == 0 {
		t.Fatalf("%d tokens, %v", len(ids), err)
	}
	for i, id := range ids {
		if id == tok.BOS() && i > 0 {
			t.Errorf("token %d is BOS: %v", i, ids)
		}
	}
}

// TestTemplateErrors checks who is blamed for what goes wrong.
func TestTemplateErrors(t *testing.T) {
	strict, err := chat.New(`{{ raise_exception("no system role") }}`, "", "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = templateChat{strict}.Render([]api.Message{{Role: "system", Content: "x"}}, true)
	if refused, ok := errors.AsType[*api.RefusedError](err); !ok || refused.Reason != "no system role" {
		t.Errorf("a refusal is %v", err)
	}
	_, parseErr := chat.New(`{% if %}`, "", "")
	if parseErr == nil {
		t.Fatal("the broken template parses")
	}
	_, err = brokenChat{parseErr}.Render(nil, true)
	if _, ok := errors.AsType[*api.RefusedError](err); ok || !errors.Is(err, parseErr) {
		t.Errorf("a broken template is %v", err)
	}
}
