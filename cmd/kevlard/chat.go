package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/kevlard/kevlard/api"
	"github.com/urfave/cli/v2"
)

const (
	// maxChatLine is the most bytes of one message; a longer one ends the chat.
	maxChatLine = 1 << 20
	// chatAnswer is how many tokens a reply may have.
	chatAnswer = 1024
	// busyTries and busyWait bound the wait for the end of a reply that was stopped:
	// the session takes the next message only then.
	busyTries = 50
	busyWait  = 100 * time.Millisecond
)

func (sh shell) chatCommand() *cli.Command {
	return &cli.Command{
		Name: "chat", Usage: "talk to a model, in one session",
		Description: "Each line is a message. Ctrl-C stops a reply, and before one it ends the chat;\n" +
			"Ctrl-D ends the chat. Replies go to stdout, all else to stderr.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "model", Aliases: []string{"m"}, Usage: "`MODEL` by name or id (default: the first that is served)"},
			&cli.StringFlag{Name: "system", Usage: "`TEXT` of the system message (default: none)"},
			&cli.StringFlag{Name: "session", Usage: "`ID` of the session (default: a new one)"},
			&cli.IntFlag{Name: "max-tokens", Aliases: []string{"n"}, Value: chatAnswer, Usage: "most tokens of a reply"},
			&cli.Float64Flag{Name: "temperature", Value: 1, Usage: "0 takes the most likely token each time"},
			&cli.Float64Flag{Name: "top-p", Value: 1, Usage: "keep the most likely tokens that make up this share"},
			&cli.Int64Flag{Name: "seed", Usage: "equal seeds give equal replies", DefaultText: "random"},
		},
		Action: func(c *cli.Context) error {
			switch {
			case c.NArg() > 0:
				return usageError("chat takes no arguments, but got %q: type the message when it runs", c.Args().First())
			case c.Int("max-tokens") < 1:
				return usageError("flag --max-tokens is %d: want at least 1", c.Int("max-tokens"))
			case wantsJSON(c):
				return usageError("flag -o is json: chat is for people; scripts use kevlard generate, or the HTTP API")
			}
			// Nothing has to be put in order before the end, so outside a reply both
			// signals just end the process, whose read of stdin nothing else would stop.
			signal.Reset(os.Interrupt, syscall.SIGTERM)
			t := &talk{
				send: sh.client(c).Chat, out: c.App.Writer, notes: c.App.ErrWriter, wait: busyWait,
				reply: func(ctx context.Context) (context.Context, context.CancelFunc) {
					return signal.NotifyContext(ctx, os.Interrupt)
				},
				body: chatBody(c),
			}
			if text := c.String("system"); text != "" {
				t.messages = append(t.messages, turn{"system", text})
			}
			return t.run(c.Context, sh.stdin)
		},
	}
}

// chatBody holds the fields of each request that stay the same.
func chatBody(c *cli.Context) map[string]any {
	body := map[string]any{"max_tokens": c.Int("max-tokens")}
	for flag, field := range map[string]string{
		"model": "model", "session": "session", "temperature": "temperature", "top-p": "top_p", "seed": "seed",
	} {
		if c.IsSet(flag) {
			body[field] = c.Value(flag)
		}
	}
	return body
}

// turn is a message of the conversation, as the API takes it.
type turn struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// talk is a conversation.
type talk struct {
	send func(ctx context.Context, body any, emit func(api.Chunk) error) error
	// reply returns the context of one reply, which ends early when the user wants
	// no more of it.
	reply    func(context.Context) (context.Context, context.CancelFunc)
	out      io.Writer
	notes    io.Writer
	body     map[string]any
	messages []turn
	wait     time.Duration // busyWait
	failed   bool          // the last message got no reply
}

// run answers each line of in, until its end.
func (t *talk) run(ctx context.Context, in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxChatLine)
	for {
		fmt.Fprint(t.notes, "> ")
		if !lines.Scan() {
			break
		}
		text := strings.TrimSpace(lines.Text())
		if text == "" {
			continue
		}
		if err := t.say(ctx, text); err != nil {
			return err
		}
	}
	fmt.Fprintln(t.notes) // the shell's prompt begins on a line of its own
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return usageError("a message is longer than %d bytes", maxChatLine)
	case err != nil:
		return fmt.Errorf("read stdin: %w", err)
	case t.failed:
		return errSilent // it was said why
	}
	return nil
}

// say sends a message and shows the reply. A refusal is only shown: the user may
// say something else. The message is forgotten then.
func (t *talk) say(ctx context.Context, text string) error {
	t.messages = append(t.messages, turn{"user", text})
	answer, err := t.ask(ctx)
	t.failed = err != nil
	if err == nil {
		t.messages = append(t.messages, turn{"assistant", answer})
		return nil
	}
	t.messages = t.messages[:len(t.messages)-1]
	if refusal, ok := errors.AsType[*api.Error](err); ok {
		fmt.Fprintf(t.notes, "kevlard: %v\n", refusal)
		return nil
	}
	return err
}

// ask streams one reply and returns its text. A reply that the user stopped is
// what there is of it.
func (t *talk) ask(ctx context.Context) (string, error) {
	ctx, stop := t.reply(ctx)
	defer stop()
	t.body["messages"] = t.messages
	var answer strings.Builder
	var err error
	for try := range busyTries {
		err = t.send(ctx, t.body, func(c api.Chunk) error {
			if c.Session != "" {
				t.body["session"] = c.Session
			}
			answer.WriteString(c.Text)
			_, err := io.WriteString(t.out, c.Text)
			return err
		})
		refusal, ok := errors.AsType[*api.Error](err)
		if !ok || !isCode(refusal, "session_busy") || try == busyTries-1 || !pause(ctx, t.wait) {
			break
		}
	}
	if answer.Len() > 0 || err == nil {
		fmt.Fprintln(t.out)
	}
	if err != nil && ctx.Err() != nil {
		fmt.Fprintln(t.notes, "(stopped)")
		return answer.String(), nil
	}
	return answer.String(), err
}

// isCode reports whether an error of the daemon has the given code.
func isCode(e *api.Error, code string) bool { return e.Code != nil && *e.Code == code }

// pause waits, and reports false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
