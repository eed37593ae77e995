package sdk

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/openai/openai-go/v3"
)

func completion(ctx context.Context, c openai.Client, p openai.CompletionNewParams) (*answer, error) {
	got, err := c.Completions.New(ctx, p)
	if err != nil {
		return nil, err
	}
	a := new(answer)
	if err := a.addCompletion(got); err != nil {
		return nil, err
	}
	a.usage = usageOf(got.Usage, got.JSON.Usage)
	return a, nil
}

func completionStream(ctx context.Context, c openai.Client, p openai.CompletionNewParams, progress func(int)) (*answer, error) {
	stream := c.Completions.NewStreaming(ctx, p)
	defer stream.Close()
	a := new(answer)
	asked := p.StreamOptions.IncludeUsage.Value
	for stream.Next() {
		chunk := stream.Current()
		if err := a.addCompletion(&chunk); err != nil {
			return nil, err
		}
		if err := a.chunkUsage(chunk.Usage, chunk.JSON.Usage, len(chunk.Choices), asked); err != nil {
			return nil, fmt.Errorf("%s: %w", chunk.RawJSON(), err)
		}
		progress(len(a.at(0).text))
	}
	return a, stream.Err()
}

// addCompletion takes a whole completion, or a chunk of one: they have one shape.
func (a *answer) addCompletion(got *openai.Completion) error {
	if got.Object != "text_completion" {
		return fmt.Errorf("object is %q", got.Object)
	}
	if err := a.begin(got.ID, got.Model, got.Created); err != nil {
		return err
	}
	for _, ch := range got.Choices {
		if err := a.grow(ch.Index, ch.Text); err != nil {
			return err
		}
		if err := a.at(ch.Index).addLogprobs(ch.Logprobs); err != nil {
			return err
		}
		if err := a.at(ch.Index).end(string(ch.FinishReason), ch.JSON.FinishReason); err != nil {
			return err
		}
	}
	return nil
}

func (c *choice) addLogprobs(l openai.CompletionChoiceLogprobs) error {
	n := len(l.Tokens)
	if len(l.TokenLogprobs) != n || len(l.TopLogprobs) != n || len(l.TextOffset) != n {
		return fmt.Errorf("logprobs %s: lists of unequal length", l.RawJSON())
	}
	for i, token := range l.Tokens {
		top, err := json.Marshal(l.TopLogprobs[i])
		if err != nil {
			return err
		}
		c.tokens = append(c.tokens, token)
		c.tops = append(c.tops, len(l.TopLogprobs[i]))
		c.logprobs = append(c.logprobs, fmt.Sprintf("%q at %d: %v, %s", token, l.TextOffset[i], l.TokenLogprobs[i], top))
	}
	return nil
}
