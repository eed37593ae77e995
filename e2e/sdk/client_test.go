package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/respjson"
)

// newClient returns the official client at the node that clients use. It does not
// retry, so that no fault hides behind a second request.
func newClient(m *mesh, opts ...option.RequestOption) openai.Client {
	return openai.NewClient(append([]option.RequestOption{
		option.WithBaseURL(m.Entry().APIURL() + "/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0),
	}, opts...)...)
}

// ask makes the row's request. While it streams, progress gets the length of the
// first choice's text after each chunk.
func ask(ctx context.Context, c openai.Client, r row, streamed bool, progress func(int)) (*answer, error) {
	if progress == nil {
		progress = func(int) {}
	}
	if r.Endpoint == "chat" {
		var p openai.ChatCompletionNewParams
		if err := typed(r.Body, &p); err != nil {
			return nil, err
		}
		if !streamed {
			return chat(ctx, c, p)
		}
		if r.Usage {
			p.StreamOptions.IncludeUsage = openai.Bool(true)
		}
		return chatStream(ctx, c, p, progress)
	}
	var p openai.CompletionNewParams
	if err := typed(r.Body, &p); err != nil {
		return nil, err
	}
	if !streamed {
		return completion(ctx, c, p)
	}
	if r.Usage {
		p.StreamOptions.IncludeUsage = openai.Bool(true)
	}
	return completionStream(ctx, c, p, progress)
}

// typed turns a body into the client's own parameters, and checks that these say
// the same.
func typed(body map[string]any, params any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, params); err != nil {
		return fmt.Errorf("the client does not take %s: %w", text, err)
	}
	sent, err := json.Marshal(params)
	if err != nil {
		return fmt.Errorf("the client does not send %s: %w", text, err)
	}
	var back map[string]any
	if err := json.Unmarshal(sent, &back); err != nil {
		return err
	}
	again, err := json.Marshal(back)
	if err == nil && !bytes.Equal(again, text) {
		err = fmt.Errorf("the client sends %s for %s", again, text)
	}
	return err
}

func chat(ctx context.Context, c openai.Client, p openai.ChatCompletionNewParams) (*answer, error) {
	got, err := c.Chat.Completions.New(ctx, p)
	if err != nil {
		return nil, err
	}
	if got.Object != "chat.completion" {
		return nil, fmt.Errorf("object is %q", got.Object)
	}
	a := new(answer)
	if err := a.begin(got.ID, got.Model, got.Created); err != nil {
		return nil, err
	}
	for _, ch := range got.Choices {
		if ch.Message.Role != "assistant" {
			return nil, fmt.Errorf("role is %q", ch.Message.Role)
		}
		if err := a.grow(ch.Index, ch.Message.Content); err != nil {
			return nil, err
		}
		a.at(ch.Index).addChatLogprobs(ch.Logprobs.Content)
		a.at(ch.Index).finish = ch.FinishReason
	}
	a.usage = usageOf(got.Usage, got.JSON.Usage)
	return a, nil
}

func chatStream(ctx context.Context, c openai.Client, p openai.ChatCompletionNewParams, progress func(int)) (*answer, error) {
	stream := c.Chat.Completions.NewStreaming(ctx, p)
	defer stream.Close()
	a := new(answer)
	asked := p.StreamOptions.IncludeUsage.Value
	var acc openai.ChatCompletionAccumulator
	roles := map[int64]bool{}
	for stream.Next() {
		chunk := stream.Current()
		if chunk.Object != "chat.completion.chunk" {
			return nil, fmt.Errorf("object is %q", chunk.Object)
		}
		if err := a.begin(chunk.ID, chunk.Model, chunk.Created); err != nil {
			return nil, err
		}
		if !acc.AddChunk(chunk) {
			return nil, fmt.Errorf("the client's accumulator refuses %s", chunk.RawJSON())
		}
		if err := a.chunkUsage(chunk.Usage, chunk.JSON.Usage, len(chunk.Choices), asked); err != nil {
			return nil, fmt.Errorf("%s: %w", chunk.RawJSON(), err)
		}
		for _, ch := range chunk.Choices {
			first := !roles[ch.Index]
			roles[ch.Index] = true
			if first && (ch.Delta.Role != "assistant" || ch.Delta.JSON.Content.Raw() != `""`) || !first && ch.Delta.JSON.Role.Valid() {
				return nil, fmt.Errorf("%s: the first delta of a choice, and no other, has the role, with empty content", chunk.RawJSON())
			}
			if err := a.grow(ch.Index, ch.Delta.Content); err != nil {
				return nil, err
			}
			a.at(ch.Index).addChatLogprobs(ch.Logprobs.Content)
			if err := a.at(ch.Index).end(ch.FinishReason, ch.JSON.FinishReason); err != nil {
				return nil, err
			}
		}
		progress(len(a.at(0).text))
	}
	if err := stream.Err(); err != nil {
		return a, err
	}
	for i, ch := range acc.Choices {
		if ch.Message.Content != a.choices[i].text || ch.FinishReason != a.choices[i].finish {
			return nil, fmt.Errorf("the client's accumulator has %q, %q for %q, %q", ch.Message.Content, ch.FinishReason, a.choices[i].text, a.choices[i].finish)
		}
	}
	return a, nil
}

// end takes the finish_reason of a chunk, which is null but for the last one.
func (c *choice) end(reason string, field respjson.Field) error {
	if reason == "" && field.Raw() != "null" {
		return fmt.Errorf("finish_reason is %s: want null or a reason", field.Raw())
	}
	if reason != "" {
		c.finish = reason
	}
	return nil
}

// chunkUsage checks the usage of one chunk: it comes once, in a chunk without
// choices, and is null before; where it was not asked for the field is missing.
func (a *answer) chunkUsage(u openai.CompletionUsage, field respjson.Field, choices int, asked bool) error {
	switch {
	case a.usage != nil:
		return fmt.Errorf("a chunk comes after the usage")
	case !asked && field.Raw() != "":
		return fmt.Errorf("usage was not asked for")
	case choices > 0 && asked && field.Raw() != "null":
		return fmt.Errorf("usage is %q, want null in a chunk with choices", field.Raw())
	case choices == 0:
		a.usage = usageOf(u, field)
		if a.usage == nil {
			return fmt.Errorf("a chunk has neither choices nor usage")
		}
	}
	return nil
}

func usageOf(u openai.CompletionUsage, field respjson.Field) *usage {
	if !field.Valid() {
		return nil
	}
	return &usage{prompt: u.PromptTokens, completion: u.CompletionTokens, total: u.TotalTokens}
}

func (c *choice) addChatLogprobs(entries []openai.ChatCompletionTokenLogprob) {
	for _, e := range entries {
		c.logprobs = append(c.logprobs, e.RawJSON())
		c.tops = append(c.tops, len(e.TopLogprobs))
		if e.Bytes == nil {
			c.tokens = append(c.tokens, e.Token)
			continue
		}
		var text []byte
		for _, b := range e.Bytes {
			text = append(text, byte(b))
		}
		c.tokens = append(c.tokens, string(text))
	}
}
