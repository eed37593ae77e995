package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kevlard/kevlard"
)

// TestManyChoices checks which sessions a request starts, and its document: choice j
// of prompt i at i*n+j, one usage, one session header each.
func TestManyChoices(t *testing.T) {
	g := &toy{lessons: map[string]lesson{"one": {answer: "ab"}, "two": {answer: "cde"}}}
	_, ts := newTestServer(t, g, 0)
	for _, c := range []struct {
		name, body string
		prompts    []string // of the sessions, in order
		seeds      []uint64
		texts      []string
		usage      [2]int
	}{
		{"one", `"prompt":"one","n":1`, []string{"one"}, []uint64{7}, []string{"ab"}, [2]int{3, 2}},
		{"n", `"prompt":"one","n":3,"best_of":3`, []string{"one", "one", "one"}, []uint64{7, 8, 9}, []string{"ab", "ab", "ab"}, [2]int{3, 6}},
		{"prompts", `"prompt":["one","two"]`, []string{"one", "two"}, []uint64{7, 7}, []string{"ab", "cde"}, [2]int{6, 5}},
		{"ids", `"prompt":[[111,110,101],[116,119,111]]`, []string{"one", "two"}, []uint64{7, 7}, []string{"ab", "cde"}, [2]int{6, 5}},
		{"both", `"prompt":["one","two"],"n":2,"max_tokens":2,"echo":true`, []string{"one", "one", "two", "two"}, []uint64{7, 8, 7, 8}, []string{"oneab", "oneab", "twocd", "twocd"}, [2]int{6, 8}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g.requests = nil
			resp, text := post(t, ts, `{"model":"toy","seed":7,`+c.body+`}`)
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("%d %s", resp.StatusCode, text)
			}
			var doc struct {
				Choices []struct {
					Index int
					Text  string
				}
				Usage usage
			}
			if err := json.Unmarshal([]byte(text), &doc); err != nil {
				t.Fatal(err)
			}
			var prompts, texts []string
			var seeds []uint64
			for _, r := range g.requests {
				prompts, seeds = append(prompts, decodeAll(toyTokenizer{}, r.Prompt)), append(seeds, r.Sampling.Seed)
			}
			for k, choice := range doc.Choices {
				texts = append(texts, choice.Text)
				if choice.Index != k {
					t.Errorf("choice %d has index %d", k, choice.Index)
				}
			}
			if !slices.Equal(prompts, c.prompts) || !slices.Equal(seeds, c.seeds) || !slices.Equal(texts, c.texts) {
				t.Errorf("prompts %q, seeds %v, texts %q", prompts, seeds, texts)
			}
			u := doc.Usage
			if u.PromptTokens != c.usage[0] || u.CompletionTokens != c.usage[1] || u.TotalTokens != c.usage[0]+c.usage[1] {
				t.Errorf("usage %+v, want %v", u, c.usage)
			}
			if ids := resp.Header.Values(sessionHeader); len(ids) != len(c.prompts) {
				t.Errorf("%d session headers, want %d", len(ids), len(c.prompts))
			}
		})
	}
}

// TestManyChoicesStreamed takes a stream apart by index: each choice is what it is
// alone, and the events of all are followed by one usage and one end.
func TestManyChoicesStreamed(t *testing.T) {
	lessons := chatLessons()
	_, ts := newTestServer(t, &toy{lessons: lessons}, 0)
	resp, text := postTo(t, ts, chatPath, `{"stream":true,"n":3,"logprobs":true,"stream_options":{"include_usage":true},`+said("plain")+`}`)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	text = strings.ReplaceAll(normalChat(t, text), `,"usage":null`, "")
	usage := `data: {chat.completion.chunk,"model":"toy","choices":[],"usage":{"prompt_tokens":21,"completion_tokens":6,"total_tokens":27,"prompt_tokens_details":{"cached_tokens":0}}}` + "\n\n"
	events, ok := strings.CutSuffix(text, usage+done)
	if !ok {
		t.Fatalf("the stream ends otherwise:\n%s", text)
	}
	alone := role + withLogprobs(content("a"), chatTokens(chatToken("a", "[97]", -97.0/128))) + withLogprobs(content("b"), chatTokens(chatToken("b", "[98]", -98.0/128))) + stop
	for k := range 3 {
		var mine strings.Builder
		index := fmt.Sprintf(`"index":%d`, k)
		for _, event := range strings.SplitAfter(events, "\n\n") {
			if strings.Contains(event, index) {
				mine.WriteString(strings.Replace(event, index, `"index":0`, 1))
			}
		}
		if mine.String() != alone {
			t.Errorf("choice %d:\n%s\nwant\n%s", k, mine.String(), alone)
		}
	}
	if n := strings.Count(events, "data: "); n != 3*4 {
		t.Errorf("%d events, want 12", n)
	}
}

// TestOneChoiceFails: the answer is one, so the others end with it.
func TestOneChoiceFails(t *testing.T) {
	refused := &kevlard.Failure{Code: "overloaded", Status: 429, Message: "full"}
	g := &toy{cancelled: make(chan kevlard.SessionID, 2), lessons: map[string]lesson{
		"hangs": {answer: "abc", after: 1, hang: true}, "fails": {answer: "abc", after: 0, fail: goneFailure}, "refused": {refuse: refused},
	}}
	_, ts := newTestServer(t, g, 0)
	for _, c := range []struct {
		second string
		stream bool
		status int
		want   string
	}{
		{"fails", false, 503, `{"error":{"message":"gone"`},
		{"refused", false, 429, `{"error":{"message":"full"`},
		{"refused", true, 429, `{"error":{"message":"full"`},
	} {
		resp, text := post(t, ts, fmt.Sprintf(`{"model":"toy","prompt":["hangs",%q],"stream":%v}`, c.second, c.stream))
		if resp.StatusCode != c.status || !strings.HasPrefix(text, c.want) {
			t.Errorf("%s, stream %v: %d %s", c.second, c.stream, resp.StatusCode, text)
		}
		<-g.cancelled // the one that hangs
	}
	_, text := post(t, ts, `{"model":"toy","prompt":["hangs","fails"],"stream":true}`)
	if !strings.Contains(text, `{"error":{"message":"gone; to go on, send the same request`) || strings.Contains(text, "[DONE]") || strings.Contains(text, `"finish_reason":"`) {
		t.Errorf("a stream of which one choice fails:\n%s", text)
	}
	<-g.cancelled
}

// TestManyChoicesCancelled: a client that goes away ends them all.
func TestManyChoicesCancelled(t *testing.T) {
	g := &toy{cancelled: make(chan kevlard.SessionID, 4), lessons: map[string]lesson{"p": {answer: "abc", after: 1, hang: true}}}
	_, ts := newTestServer(t, g, 0)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, ts.URL+"/v1/completions", strings.NewReader(`{"model":"toy","prompt":"p","n":4,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	cancel()
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("the client did not notice that it cancelled")
	}
	for range 4 {
		<-g.cancelled
	}
}

// TestCompleteIsForOneAnswer: the control socket's lines have no place for more.
func TestCompleteIsForOneAnswer(t *testing.T) {
	g := &toy{}
	for body, param := range map[string]string{
		`{"prompt":"a","n":2}`: "n", `{"prompt":["a","b"]}`: "n", `{"prompt":"a","logprobs":1}`: "logprobs",
	} {
		err := Complete(t.Context(), g, strings.NewReader(body), func(Chunk) error { return nil })
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Status != http.StatusBadRequest || *e.Param != param || !strings.Contains(e.Message, "use the HTTP API") {
			t.Errorf("%s: %v, want a 400 about %s", body, err, param)
		}
	}
	if len(g.requests) != 0 {
		t.Errorf("%d sessions were started", len(g.requests))
	}
}
