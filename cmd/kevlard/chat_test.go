package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kevlard/kevlard/api"
)

// partner plays the daemon's part of a chat, a step for each request.
type partner struct {
	steps  []func(emit func(api.Chunk) error) error
	bodies []string // what was asked
	stop   context.CancelFunc
}

func (p *partner) send(ctx context.Context, body any, emit func(api.Chunk) error) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	p.bodies = append(p.bodies, string(text))
	step := p.steps[0]
	p.steps = p.steps[1:]
	return errors.Join(step(emit), ctx.Err())
}

// converse runs a conversation and returns stdout and stderr.
func (p *partner) converse(t *testing.T, in string, before ...turn) (string, string, error) {
	t.Helper()
	var out, notes strings.Builder
	talk := &talk{
		send: p.send, out: &out, notes: &notes, body: map[string]any{"max_tokens": 5}, messages: before,
		reply: func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, p.stop = context.WithCancel(ctx)
			return ctx, p.stop
		},
	}
	err := talk.run(t.Context(), strings.NewReader(in))
	return out.String(), notes.String(), err
}

func says(session string, texts ...string) func(func(api.Chunk) error) error {
	return func(emit func(api.Chunk) error) error {
		err := emit(api.Chunk{Session: session})
		for _, text := range texts {
			err = errors.Join(err, emit(api.Chunk{Text: text}))
		}
		return errors.Join(err, emit(api.Chunk{FinishReason: "stop"}))
	}
}

func refuses(status int, code, message string) func(func(api.Chunk) error) error {
	return func(func(api.Chunk) error) error { return &api.Error{Status: status, Code: &code, Message: message} }
}

// TestChatTurns checks that each request has the whole conversation, in one session.
func TestChatTurns(t *testing.T) {
	p := &partner{steps: []func(func(api.Chunk) error) error{says("s1", "Hel", "lo."), says("s1", "Bye.")}}
	out, notes, err := p.converse(t, " hi \n\nbye\n", turn{"system", "Be brief."})
	if err != nil || out != "Hello.\nBye.\n" || notes != "> > > > \n" {
		t.Errorf("stdout %q, stderr %q, %v", out, notes, err)
	}
	want := []string{
		`{"max_tokens":5,"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}]}`,
		`{"max_tokens":5,"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"},` +
			`{"role":"assistant","content":"Hello."},{"role":"user","content":"bye"}],"session":"s1"}`,
	}
	if fmt.Sprint(p.bodies) != fmt.Sprint(want) {
		t.Errorf("asked %v\nwant %v", p.bodies, want)
	}
}

// TestChatStop checks that a stopped reply stays in the conversation as far as it
// came, and that the next message waits until its session is free.
func TestChatStop(t *testing.T) {
	p := &partner{}
	p.steps = []func(func(api.Chunk) error) error{
		func(emit func(api.Chunk) error) error {
			err := emit(api.Chunk{Session: "s1", Text: "One, two"})
			p.stop()
			return err
		},
		refuses(409, "session_busy", "the session s1 is running"), refuses(409, "session_busy", "the session s1 is running"), says("s1", "Fine."),
	}
	out, notes, err := p.converse(t, "count\nstop\n")
	if err != nil || out != "One, two\nFine.\n" || notes != "> (stopped)\n> > \n" {
		t.Errorf("stdout %q, stderr %q, %v", out, notes, err)
	}
	if last := p.bodies[len(p.bodies)-1]; len(p.bodies) != 4 || !strings.Contains(last, `{"role":"assistant","content":"One, two"}`) {
		t.Errorf("asked %v", p.bodies)
	}
}

// TestChatErrors checks what ends a chat and what does not.
func TestChatErrors(t *testing.T) {
	p := &partner{steps: []func(func(api.Chunk) error) error{refuses(429, "overloaded", "too many requests"), says("s1", "Yes.")}}
	out, notes, err := p.converse(t, "a\nb\n")
	if err != nil || out != "Yes.\n" || !strings.Contains(notes, "kevlard: too many requests\n") {
		t.Errorf("refused, then answered: stdout %q, stderr %q, %v", out, notes, err)
	}
	if strings.Contains(p.bodies[1], `"a"`) {
		t.Errorf("the refused message is still there: %s", p.bodies[1])
	}
	p = &partner{steps: []func(func(api.Chunk) error) error{refuses(429, "overloaded", "too many requests")}}
	if _, _, err := p.converse(t, "a\n"); !errors.Is(err, errSilent) {
		t.Errorf("refused last: %v", err)
	}
	p = &partner{steps: []func(func(api.Chunk) error) error{func(func(api.Chunk) error) error { return api.ErrNoDaemon }}}
	if _, _, err := p.converse(t, "a\nb\n"); !errors.Is(err, api.ErrNoDaemon) || len(p.bodies) != 1 {
		t.Errorf("no daemon: %v after %d requests", err, len(p.bodies))
	}
	p = &partner{}
	if _, _, err := p.converse(t, strings.Repeat("x", maxChatLine+1)); err == nil || exitCode(t.Context(), err) != exitUsage {
		t.Errorf("long line: %v", err)
	}
}

// TestChatUsage checks the flags, and that an end of input at once is fine.
func TestChatUsage(t *testing.T) {
	for args, want := range map[string]string{
		"chat hello":          `kevlard: chat takes no arguments, but got "hello": type the message when it runs` + "\n",
		"chat --max-tokens 0": "kevlard: flag --max-tokens is 0: want at least 1\n",
		"chat -o json":        "kevlard: flag -o is json: chat is for people; scripts use kevlard generate, or the HTTP API\n",
	} {
		if r := program(t, nil, "", strings.Fields(args)...); r.code != exitUsage || r.stderr != want {
			t.Errorf("%s: %+v", args, r)
		}
	}
	if r := program(t, nil, "", "chat", "--control", t.TempDir()+"/none"); r.code != 0 || r.stdout != "" {
		t.Errorf("nothing said: %+v", r)
	}
	if r := program(t, nil, "hi\n", "chat", "--control", t.TempDir()+"/none"); r.code != exitNoDaemon {
		t.Errorf("no daemon: %+v", r)
	}
}
