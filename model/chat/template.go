package chat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
	"github.com/nikolalohinski/gonja/v2/tokens"
)

// Message is one turn of a conversation. Role is "system", "user" or "assistant"
// as far as templates know; others are the template's to refuse.
type Message struct {
	Role    string
	Content string
}

// Template renders conversations for one model. It never changes and may be
// shared.
type Template struct {
	parsed   *exec.Template // nil: plain
	bos, eos string
	now      func() time.Time
}

// RefusedError says that a template does not take the messages, by calling
// raise_exception: roles in the wrong order, a role that the model does not know.
// Whoever wrote the messages is to blame.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return "the model's chat template refuses: " + e.Reason }

// templateName is the name of the one template in its loader.
const templateName = "/chat_template"

// New parses a template. bos and eos are the texts of the model's first and last
// token, which templates write out.
func New(template, bos, eos string) (*Template, error) {
	if len(template) > maxTemplate {
		return nil, fmt.Errorf("chat template of %d bytes: want at most %d", len(template), maxTemplate)
	}
	if err := checkNesting(template); err != nil {
		return nil, err
	}
	loader, err := loaders.NewMemoryLoader(map[string]string{templateName: template})
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	parsed, err := parse(loader)
	if err != nil {
		return nil, err
	}
	return &Template{parsed: parsed, bos: bos, eos: eos, now: time.Now}, nil
}

// checkNesting refuses what the parser's recursion would not survive.
func checkNesting(template string) error {
	brackets, blocks := 0, 0
	begins := false // the last token began a tag
	for s := tokens.LexAll(template, configuration()); !s.End(); s.Next() {
		t := s.Current()
		switch t.Type {
		case tokens.LeftBrace, tokens.LeftBracket, tokens.LeftParenthesis:
			brackets++
		case tokens.RightBrace, tokens.RightBracket, tokens.RightParenthesis:
			brackets--
		}
		switch {
		case begins && strings.HasPrefix(t.Val, "end"):
			blocks--
		case begins && slices.Contains([]string{"for", "if", "macro", "call", "filter", "with"}, t.Val):
			blocks++
		}
		begins = t.Type == tokens.BlockBegin
		if brackets > maxNesting || blocks > maxNesting {
			return fmt.Errorf("parse chat template: line %d: more than %d brackets or blocks inside one another", t.Line, maxNesting)
		}
	}
	return nil
}

// parse makes errors of the parser's panics: it has some for odd templates.
func parse(loader loaders.Loader) (t *exec.Template, err error) {
	defer func() {
		if p := recover(); p != nil {
			t, err = nil, fmt.Errorf("parse chat template: %v", p)
		}
	}()
	t, err = exec.NewTemplate(templateName, configuration(), loader, environment())
	if err != nil {
		if cause := errors.Unwrap(err); cause != nil {
			err = cause // the rest is the whole text
		}
		return nil, fmt.Errorf("parse chat template: %s", shorten(err.Error()))
	}
	return t, nil
}

// Render returns the prompt for the messages. With addGenerationPrompt it ends
// where the assistant's answer begins. Errors are a *RefusedError, or say what is
// wrong with the template.
func (t *Template) Render(messages []Message, addGenerationPrompt bool) (string, error) {
	if t.parsed == nil {
		return plain(messages, addGenerationPrompt)
	}
	list := make([]any, len(messages))
	for i, m := range messages {
		list[i] = map[string]any{"role": m.Role, "content": m.Content}
	}
	b := newBudget(t.now)
	err := t.execute(b, exec.NewContext(map[string]any{
		budgetKey:               b,
		"messages":              list,
		"add_generation_prompt": addGenerationPrompt,
		"bos_token":             t.bos,
		"eos_token":             t.eos,
		"tools":                 nil,
		"documents":             nil,
		"raise_exception":       b.refuse,
		"strftime_now":          t.strftimeNow,
	}))
	switch {
	case b.err != nil: // what went wrong first; gonja wraps it in the names of all that was around it
		return "", b.err
	case err != nil:
		return "", fmt.Errorf("render chat template: %s", shorten(err.Error()))
	}
	return b.out.String(), nil
}

// execute makes errors of gonja's panics: it has some for wrong types.
func (t *Template) execute(b *budget, data *exec.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	return t.parsed.Execute(b, data)
}

// strftimeNow is the templates' strftime_now(FORMAT).
func (t *Template) strftimeNow(args *exec.VarArgs) (any, error) {
	if len(args.Args) != 1 || len(args.KwArgs) > 0 {
		return nil, errors.New("strftime_now takes one argument, a format")
	}
	return strftime(t.now().UTC(), args.Args[0].String())
}

// shorten cuts a text that an error is to hold.
func shorten(s string) string {
	if len(s) <= maxReason {
		return s
	}
	return s[:maxReason] + "..."
}
