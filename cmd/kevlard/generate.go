package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/api"
	"github.com/urfave/cli/v2"
)

// maxStdinPrompt is the most bytes of a prompt read from stdin.
const maxStdinPrompt = 4 << 20

// defaultAnswer is how many tokens generate asks for; more than the API's 16, which
// is less than a sentence.
const defaultAnswer = 128

func (sh shell) generateCommand() *cli.Command {
	return &cli.Command{
		Name: "generate", Usage: "complete a prompt and stream the text to stdout", ArgsUsage: "PROMPT",
		Description: "PROMPT - reads the prompt from stdin. Without --local the local daemon does the\n" +
			"work, wherever the stages are; with it, this process does, from the given file.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "model", Aliases: []string{"m"}, Usage: "`MODEL` by name or id (default: the first that is served)"},
			&cli.StringFlag{Name: "session", Usage: "`NAME` for the session; one of a name runs at a time (default: none)"},
			&cli.IntFlag{Name: "max-tokens", Aliases: []string{"n"}, Value: defaultAnswer, Usage: "most tokens of the answer"},
			&cli.Float64Flag{Name: "temperature", Value: 1, Usage: "0 takes the most likely token each time"},
			&cli.Float64Flag{Name: "top-p", Value: 1, Usage: "keep the most likely tokens that make up this share"},
			&cli.IntFlag{Name: "top-k", Usage: "keep this many of the most likely tokens; 0: all"},
			&cli.Float64Flag{Name: "min-p", Usage: "keep tokens at least this likely, compared with the likeliest"},
			&cli.Int64Flag{Name: "seed", Usage: "equal seeds give equal answers", DefaultText: "random"},
			&cli.StringSliceFlag{Name: "stop", Usage: "end before this `TEXT`; up to 4"},
			&cli.BoolFlag{Name: "ignore-eos", Usage: "go on after the model's end token"},
			&cli.StringFlag{Name: "local", Usage: "compute in this process with the model `FILE`; no daemon is needed"},
			&cli.IntFlag{Name: "stages", Value: 1, Usage: "with --local: split the layers into this many stages"},
			&cli.IntFlag{Name: "threads", Usage: "with --local: compute threads", DefaultText: "half of the cores"},
		},
		Action: func(c *cli.Context) error {
			prompt, err := sh.prompt(c)
			if err != nil {
				return err
			}
			if c.Int("max-tokens") < 1 {
				return usageError("flag --max-tokens is %d: want at least 1", c.Int("max-tokens"))
			}
			out := &generation{w: c.App.Writer, json: wantsJSON(c), Failovers: []api.Failover{}, TokenIDs: []kevlard.Token{}}
			return out.end(sh.generate(c, prompt, out))
		},
	}
}

// prompt returns the prompt that the arguments name.
func (sh shell) prompt(c *cli.Context) (string, error) {
	prompt, err := oneArgument(c, "PROMPT")
	if err != nil || prompt != "-" {
		return prompt, err
	}
	text, err := io.ReadAll(io.LimitReader(sh.stdin, maxStdinPrompt+1))
	if err != nil {
		return "", fmt.Errorf("read the prompt from stdin: %w", err)
	}
	if len(text) > maxStdinPrompt {
		return "", usageError("the prompt on stdin is larger than %d bytes", maxStdinPrompt)
	}
	return string(text), nil
}

// generation is an answer as it grows, and in the end its JSON.
type generation struct {
	Text         string          `json:"text"`
	TokenIDs     []kevlard.Token `json:"token_ids"`
	FinishReason string          `json:"finish_reason"`
	Session      string          `json:"session"`
	TTFTMS       float64         `json:"ttft_ms"`
	Failovers    []api.Failover  `json:"failovers"`

	w     io.Writer
	json  bool
	began time.Time
	text  strings.Builder
}

// add takes some more of the answer; people see it at once.
func (g *generation) add(text string, tokens []kevlard.Token) error {
	if g.TTFTMS == 0 && len(tokens) > 0 {
		g.TTFTMS = float64(time.Since(g.began).Microseconds()) / 1000
	}
	g.TokenIDs = append(g.TokenIDs, tokens...)
	g.text.WriteString(text)
	if g.json || text == "" {
		return nil
	}
	_, err := io.WriteString(g.w, text)
	return err
}

// end finishes the output, whatever err the generation had.
func (g *generation) end(err error) error {
	if !g.json {
		if g.text.Len() > 0 {
			fmt.Fprintln(g.w) // the shell's prompt, or the error, begins on a line of its own
		}
		return err
	}
	if err != nil {
		return err
	}
	g.Text = g.text.String()
	return writeJSON(g.w, g)
}

// chunk takes a chunk of the answer.
func (g *generation) chunk(c api.Chunk) error {
	if c.Session != "" {
		g.Session = c.Session
	}
	if c.FinishReason != "" {
		g.FinishReason = c.FinishReason
		g.Failovers = append(g.Failovers, c.Failovers...)
	}
	return g.add(c.Text, c.TokenIDs)
}

// generate lets the local daemon or this process do it.
func (sh shell) generate(c *cli.Context, prompt string, out *generation) error {
	body := map[string]any{"prompt": prompt, "max_tokens": c.Int("max-tokens")}
	for flag, field := range map[string]string{
		"model": "model", "session": "session", "temperature": "temperature", "top-p": "top_p", "top-k": "top_k",
		"min-p": "min_p", "seed": "seed", "ignore-eos": "ignore_eos",
	} {
		if c.IsSet(flag) {
			body[field] = c.Value(flag)
		}
	}
	if c.IsSet("stop") {
		body["stop"] = c.StringSlice("stop")
	}
	if c.String("local") == "" {
		out.began = time.Now()
		return sh.client(c).Generate(c.Context, body, out.chunk)
	}
	l, err := openLocal(c)
	if err != nil {
		return err
	}
	defer l.engine.Close()
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	out.began = time.Now()
	return api.Complete(c.Context, l, bytes.NewReader(text), out.chunk)
}
