package api

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/kevlard/kevlard"
)

// TestBadRequests checks that each mistake gets its status and one exact envelope.
func TestBadRequests(t *testing.T) {
	_, ts := newTestServer(t, &toy{}, 0)
	const wrongPrompt = "prompt must be a string, an array of token ids, or an array of up to 16 of either"
	const wrongLogprobs = "logprobs must be a whole number from 0 to 5, the likeliest tokens to list besides the chosen one"
	for _, c := range []struct {
		name, body string
		status     int
		param      string // "-": null
		code       string // "-": null
		message    string
	}{
		{"empty body", ``, 400, "-", "invalid_json", "the body is empty: want a JSON object"},
		{"not JSON", `{"model":`, 400, "-", "invalid_json", "the body is not valid JSON: unexpected EOF"},
		{"array", `[1]`, 400, "-", "invalid_json", "the body must be a JSON object, not an array"},
		{"two documents", `{"model":"toy","prompt":"a"}{}`, 400, "-", "invalid_json", "the body must be one JSON object: there is more after it"},
		{"no model", `{"prompt":"a"}`, 404, "model", "model_not_found", "model is missing (available: toy, bare)"},
		{"unknown model", `{"model":"x","prompt":"a"}`, 404, "model", "model_not_found", `the model "x" does not exist (available: toy, bare)`},
		{"model type", `{"model":1,"prompt":"a"}`, 400, "model", "-", "model must be a string, not a number"},
		{"no tokenizer", `{"model":"bare","prompt":"a"}`, 503, "-", "no_tokenizer", "no tokenizer for model bare on this node: put the model file in [models] dirs"},
		{"no prompt", `{"model":"toy"}`, 400, "prompt", "-", "prompt is missing"},
		{"empty prompt", `{"model":"toy","prompt":""}`, 400, "prompt", "-", "the prompt is empty"},
		{"empty ids", `{"model":"toy","prompt":[]}`, 400, "prompt", "-", "the prompt is empty"},
		{"prompt object", `{"model":"toy","prompt":{}}`, 400, "prompt", "-", wrongPrompt},
		{"mixed prompt", `{"model":"toy","prompt":["a",1]}`, 400, "prompt", "-", wrongPrompt},
		{"null id", `{"model":"toy","prompt":[null]}`, 400, "prompt", "-", wrongPrompt},
		{"nested null id", `{"model":"toy","prompt":[[null]]}`, 400, "prompt", "-", wrongPrompt},
		{"fraction id", `{"model":"toy","prompt":[1.5]}`, 400, "prompt", "-", wrongPrompt},
		{"null prompt", `{"model":"toy","prompt":["a",null]}`, 400, "prompt", "-", wrongPrompt},
		{"one prompt empty", `{"model":"toy","prompt":["a",""]}`, 400, "prompt[1]", "-", "the prompt is empty"},
		{"no ids", `{"model":"toy","prompt":[[1],[]]}`, 400, "prompt[1]", "-", "the prompt is empty"},
		{"one id too big", `{"model":"toy","prompt":[[1],[257]]}`, 400, "prompt[1]", "-", "token id 257 is not in the vocabulary of toy: want 0 to 256"},
		{"one prompt too long", `{"model":"toy","prompt":["a","abc"],"max_tokens":98}`, 400, "prompt[1]", "context_length_exceeded", "the model's context is 100 tokens, but the prompt has 3 and max_tokens is 98: shorten one of them"},
		{"many prompts", `{"model":"toy","prompt":["a"` + strings.Repeat(`,"a"`, 16) + `]}`, 400, "prompt", "-", "prompt has 17 entries: want at most 16"},
		{"many answers", `{"model":"toy","prompt":["a","b","c"],"n":6}`, 400, "n", "-", "n is 6, for 3 prompts: want at most 16 answers in all"},
		{"one session", `{"model":"toy","prompt":["a","b"],"session":"s"}`, 400, "session", "-", "session names one answer, and the request is for 2: leave it out"},
		{"id too big", `{"model":"toy","prompt":[257]}`, 400, "prompt", "-", "token id 257 is not in the vocabulary of toy: want 0 to 256"},
		{"id negative", `{"model":"toy","prompt":[-1]}`, 400, "prompt", "-", "token id -1 is not in the vocabulary of toy: want 0 to 256"},
		{"max_tokens 0", `{"model":"toy","prompt":"a","max_tokens":0}`, 400, "max_tokens", "-", "max_tokens is 0: want at least 1"},
		{"max_tokens text", `{"model":"toy","prompt":"a","max_tokens":"5"}`, 400, "max_tokens", "-", "max_tokens must be a whole number, not a string"},
		{"max_tokens fraction", `{"model":"toy","prompt":"a","max_tokens":1.5}`, 400, "max_tokens", "-", "max_tokens must be a whole number, not 1.5"},
		{"newer name", `{"model":"toy","prompt":"a","max_completion_tokens":-1}`, 400, "max_completion_tokens", "-", "max_completion_tokens is -1: want at least 1"},
		{"both names", `{"model":"toy","prompt":"a","max_tokens":5,"max_completion_tokens":9}`, 400, "max_completion_tokens", "-", "max_completion_tokens is 9, but its older name max_tokens is 5: give one of them"},
		{"min over max", `{"model":"toy","prompt":"a","max_tokens":5,"min_tokens":6}`, 400, "min_tokens", "-", "min_tokens is 6: want 0 to max_tokens, which is 5"},
		{"too long", `{"model":"toy","prompt":"abc","max_tokens":98}`, 400, "prompt", "context_length_exceeded", "the model's context is 100 tokens, but the prompt has 3 and max_tokens is 98: shorten one of them"},
		{"prompt alone too long", `{"model":"toy","prompt":"` + strings.Repeat("a", 101) + `"}`, 400, "prompt", "context_length_exceeded", "the model's context is 100 tokens, but the prompt has 101 and max_tokens is 16: shorten one of them"},
		{"temperature", `{"model":"toy","prompt":"a","temperature":2.5}`, 400, "temperature", "-", "temperature is 2.5: want 0 to 2"},
		{"top_p", `{"model":"toy","prompt":"a","top_p":0}`, 400, "top_p", "-", "top_p is 0: want more than 0 and at most 1"},
		{"top_k", `{"model":"toy","prompt":"a","top_k":-2}`, 400, "top_k", "-", "top_k is -2: want 1 or more, or 0 or -1 to keep all"},
		{"min_p", `{"model":"toy","prompt":"a","min_p":1.1}`, 400, "min_p", "-", "min_p is 1.1: want 0 to 1"},
		{"seed", `{"model":"toy","prompt":"a","seed":"x"}`, 400, "seed", "-", "seed must be a whole number, not a string"},
		{"stream type", `{"model":"toy","prompt":"a","stream":"yes"}`, 400, "stream", "-", "stream must be true or false, not a string"},
		{"stream options", `{"model":"toy","prompt":"a","stream_options":{"include_usage":true}}`, 400, "stream_options", "-", "stream_options is only allowed when stream is true"},
		{"stop type", `{"model":"toy","prompt":"a","stop":1}`, 400, "stop", "-", "stop must be a string or an array of up to 4 strings"},
		{"stop count", `{"model":"toy","prompt":"a","stop":["1","2","3","4","5"]}`, 400, "stop", "-", "stop has 5 strings: at most 4"},
		{"stop empty", `{"model":"toy","prompt":"a","stop":""}`, 400, "stop", "-", "a stop string has 0 bytes: want 1 to 1024"},
		{"session", `{"model":"toy","prompt":"a","session":"a b"}`, 400, "session", "-", "session must have 1 to 64 letters, digits, '.', '_' or '-'"},
		{"n", `{"model":"toy","prompt":"a","n":9}`, 400, "n", "-", "n is 9: want 1 to 8"},
		{"best_of", `{"model":"toy","prompt":"a","best_of":2}`, 400, "best_of", "unsupported_parameter", "best_of is 2: only n, which is 1, is supported"},
		{"best_of 1", `{"model":"toy","prompt":"a","best_of":1,"n":2}`, 400, "best_of", "unsupported_parameter", "best_of is 1: only n, which is 2, is supported"},
		{"logprobs", `{"model":"toy","prompt":"a","logprobs":6}`, 400, "logprobs", "-", wrongLogprobs},
		{"logprobs negative", `{"model":"toy","prompt":"a","logprobs":-1}`, 400, "logprobs", "-", wrongLogprobs},
		{"logprobs true", `{"model":"toy","prompt":"a","logprobs":true}`, 400, "logprobs", "-", wrongLogprobs},
		{"logprobs fraction", `{"model":"toy","prompt":"a","logprobs":1.5}`, 400, "logprobs", "-", wrongLogprobs},
		{"logprobs with echo", `{"model":"toy","prompt":"a","logprobs":1,"echo":true}`, 400, "logprobs", "-", "logprobs with echo: the prompt's logprobs are not computed: leave one of the two fields out"},
		{"guided", `{"model":"toy","prompt":"a","guided_json":{}}`, 400, "guided_json", "unsupported_parameter", "guided_json is not supported yet: leave the field out"},
		{"stop ids", `{"model":"toy","prompt":"a","stop_token_ids":[5]}`, 400, "stop_token_ids", "unsupported_parameter", "stop_token_ids is not supported yet: leave the field out"},
		{"beams", `{"model":"toy","prompt":"a","use_beam_search":true}`, 400, "use_beam_search", "unsupported_parameter", "use_beam_search is not supported yet: leave the field out"},
		{"suffix", `{"model":"toy","prompt":"a","suffix":"x"}`, 400, "suffix", "unsupported_parameter", "suffix is not supported: leave the field out"},
		{"presence", `{"model":"toy","prompt":"a","presence_penalty":2.5}`, 400, "presence_penalty", "-", "presence_penalty is 2.5: want -2 to 2"},
		{"frequency", `{"model":"toy","prompt":"a","frequency_penalty":-3}`, 400, "frequency_penalty", "-", "frequency_penalty is -3: want -2 to 2"},
		{"repetition", `{"model":"toy","prompt":"a","repetition_penalty":0}`, 400, "repetition_penalty", "-", "repetition_penalty is 0: want 0.01 to 100"},
		{"logit_bias type", `{"model":"toy","prompt":"a","logit_bias":[1]}`, 400, "logit_bias", "-", `logit_bias must be an object of token ids and numbers, as in {"50256": -100}`},
		{"logit_bias token", `{"model":"toy","prompt":"a","logit_bias":{"257":1}}`, 400, "logit_bias", "-", `logit_bias has "257", which is no token id: want 0 to 256`},
		{"logit_bias word", `{"model":"toy","prompt":"a","logit_bias":{"the":1}}`, 400, "logit_bias", "-", `logit_bias has "the", which is no token id: want 0 to 256`},
		{"logit_bias range", `{"model":"toy","prompt":"a","logit_bias":{"7":101}}`, 400, "logit_bias", "-", "logit_bias of token 7 must be a number from -100 to 100"},
		{"logit_bias null", `{"model":"toy","prompt":"a","logit_bias":{"7":null}}`, 400, "logit_bias", "-", "logit_bias of token 7 must be a number from -100 to 100"},
		{"logit_bias count", `{"model":"toy","prompt":"a","logit_bias":{` + strings.TrimSuffix(manyBiases(kevlard.MaxBias+1), ",") + `}}`, 400, "logit_bias", "-", "logit_bias has 1025 entries: at most 1024"},
		{"response_format type", `{"model":"toy","prompt":"a","response_format":"text"}`, 400, "response_format", "-", "response_format must be an object, not a string"},
		{"include_usage type", `{"model":"toy","prompt":"a","stream":true,"stream_options":{"include_usage":1}}`, 400, "stream_options.include_usage", "-", "stream_options.include_usage must be true or false, not a number"},
		// K12: what can't be kept through a failover is not begun. An answer that must be JSON
		// needs a grammar, whose state would have to move with the session.
		{"K12: json_schema", `{"model":"toy","prompt":"a","stream":true,"response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":{"type":"object"}}}}`, 400, "response_format", "unsupported_parameter", "response_format is not supported yet: only text is"},
		{"K12: json_object", `{"model":"toy","prompt":"a","response_format":{"type":"json_object"}}`, 400, "response_format", "unsupported_parameter", "response_format is not supported yet: only text is"},
		{"too large", `{"model":"toy","prompt":"` + strings.Repeat("a", maxBody) + `"}`, 413, "-", "request_too_large", "the body is larger than 4194304 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, text := post(t, ts, c.body)
			quote := func(s string) string {
				if s == "-" {
					return "null"
				}
				return fmt.Sprintf("%q", s)
			}
			kind := "invalid_request_error"
			if c.status >= 500 {
				kind = "server_error"
			}
			want := compact(t, fmt.Sprintf(`{"error":{"message":%q,"type":%q,"param":%s,"code":%s}}`, c.message, kind, quote(c.param), quote(c.code)))
			if got := compact(t, text); resp.StatusCode != c.status || got != want {
				t.Errorf("got  %d %s\nwant %d %s", resp.StatusCode, got, c.status, want)
			}
			if ct := resp.Header.Get("Content-Type"); ct != "application/json" {
				t.Errorf("content type %q", ct)
			}
		})
	}
}

// manyBiases returns n entries of a logit_bias.
func manyBiases(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"%d":0,`, i)
	}
	return b.String()
}

// TestAccepted checks what becomes of the fields of good requests.
func TestAccepted(t *testing.T) {
	g := &toy{}
	_, ts := newTestServer(t, g, 0)
	for _, c := range []struct {
		name, body string
		check      func(r GenRequest) bool
	}{
		{"defaults", `{"model":"toy","prompt":"ab"}`, func(r GenRequest) bool {
			return r.MaxTokens == 16 && r.Sampling.Temperature == 1 && r.Sampling.TopP == 0 && len(r.Prompt) == 2 && len(r.EOG) == 1 && !r.IgnoreEOG && r.Session == ""
		}},
		{"model by id", `{"model":"` + kevlard.Digest{1}.String() + `","prompt":"a"}`, func(r GenRequest) bool { return r.Model == kevlard.Digest{1} }},
		{"token ids", `{"model":"toy","prompt":[7,8]}`, func(r GenRequest) bool { return len(r.Prompt) == 2 && r.Prompt[1] == 8 }},
		{"one of an array", `{"model":"toy","prompt":["ab"]}`, func(r GenRequest) bool { return len(r.Prompt) == 2 }},
		{"ids in an array", `{"model":"toy","prompt":[[5,6,7]]}`, func(r GenRequest) bool { return len(r.Prompt) == 3 }},
		{"sampling", `{"model":"toy","prompt":"a","temperature":0,"top_p":0.5,"top_k":-1,"min_p":0.1,"seed":-3}`, func(r GenRequest) bool {
			return reflect.DeepEqual(r.Sampling, kevlard.Sampling{TopP: 0.5, MinP: 0.1, Seed: ^uint64(2)})
		}},
		{"penalties", `{"model":"toy","prompt":"abc","temperature":0,"seed":1,"presence_penalty":1,"frequency_penalty":-2,"repetition_penalty":1.5}`, func(r GenRequest) bool {
			return reflect.DeepEqual(r.Sampling, kevlard.Sampling{Seed: 1, Presence: 1, Frequency: -2, Repetition: 1.5, Prompt: 3})
		}},
		{"bias", `{"model":"toy","prompt":"a","temperature":0,"seed":1,"logit_bias":{"10":-100,"9":1.5}}`, func(r GenRequest) bool {
			return reflect.DeepEqual(r.Sampling, kevlard.Sampling{Seed: 1, Bias: []kevlard.TokenBias{{Token: 9, Bias: 1.5}, {Token: 10, Bias: -100}}})
		}},
		{"no end before min_tokens", `{"model":"toy","prompt":"abc","temperature":0,"seed":1,"min_tokens":4}`, func(r GenRequest) bool {
			return reflect.DeepEqual(r.Sampling, kevlard.Sampling{Seed: 1, Ban: []kevlard.Token{toyEOS}, BanUntil: 7}) && r.MinTokens == 4
		}},
		{"limits", `{"model":"toy","prompt":"a","max_tokens":9,"max_completion_tokens":9,"min_tokens":2,"ignore_eos":true}`, func(r GenRequest) bool {
			return r.MaxTokens == 9 && r.MinTokens == 2 && r.IgnoreEOG
		}},
		{"exactly the context", `{"model":"toy","prompt":"ab","max_tokens":98}`, func(r GenRequest) bool { return r.MaxTokens == 98 }},
		{
			"neutral values", `{"model":"toy","prompt":"a","n":1,"best_of":1,"logprobs":null,"suffix":null,"presence_penalty":0,"frequency_penalty":0,"repetition_penalty":1,"logit_bias":{},"response_format":{"type":"text"},"stop_token_ids":[],"bad_words": [ ],"use_beam_search":false,"guided_json":null,"user":"me","unknown":[1]}`,
			func(r GenRequest) bool { return len(r.Prompt) == 1 },
		},
		{"session", `{"model":"toy","prompt":"a","session":"s-1"}`, func(r GenRequest) bool { return r.Session == "s-1" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, text := post(t, ts, c.body)
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("%d %s", resp.StatusCode, text)
			}
			r := g.requests[len(g.requests)-1]
			if !c.check(r) {
				t.Errorf("the generator got %+v", r)
			}
			want := string(r.Session)
			if want == "" {
				want = ".toy" // the id
			}
			if h := resp.Header.Get(sessionHeader); h != want {
				t.Errorf("session header %q, want %q", h, want)
			}
		})
	}
}

// FuzzBody checks that no body panics, and that what is accepted keeps the promises
// of GenRequest.
func FuzzBody(f *testing.F) {
	for _, s := range []string{
		`{"model":"toy","prompt":"a"}`, `{"model":"toy","prompt":[1,2],"stop":["a","b"],"stream":true}`, `{"prompt":[[1]]}`, `[]`,
		`{"model":"toy","prompt":["x",[3]],"n":3,"logprobs":2}`, `{"model":"toy","prompt":["x"],"max_tokens":9223372036854775807,"seed":-1,"top_k":-1,"session":"a"}`, `{"model":"toy","prompt":[null]}`,
	} {
		f.Add(s)
	}
	models := (&toy{}).Models()
	f.Fuzz(func(t *testing.T, text string) {
		var b completionBody
		if err := decodeBody(strings.NewReader(text), &b); err != nil {
			return
		}
		c, err := b.check(models)
		if err != nil {
			if err.Status < 400 || err.Message == "" {
				t.Fatalf("bad error %+v", err)
			}
			return
		}
		if len(c.choices) < 1 || len(c.choices) > maxChoices {
			t.Fatalf("accepted %q as %d choices", text, len(c.choices))
		}
		for _, choice := range c.choices {
			g := choice.gen
			if len(g.Prompt) == 0 || g.MaxTokens < 1 || len(g.Prompt)+g.MaxTokens > c.model.Context || g.MinTokens > g.MaxTokens || len(g.Session) > maxSessionName {
				t.Fatalf("accepted %q as %+v", text, g)
			}
			for _, id := range g.Prompt {
				if id < 0 || int(id) >= c.model.Vocab {
					t.Fatalf("accepted token %d", id)
				}
			}
		}
	})
}

// TestUnbuiltAreRefused: each of the fields is refused by its own name, and is taken
// with each of its neutral values and with null.
func TestUnbuiltAreRefused(t *testing.T) {
	_, ts := newTestServer(t, &toy{}, 0)
	completion, chat := `{"model":"toy","prompt":"a"`, `{`+said("hi")
	try := func(path, start string, list []unbuilt) {
		for _, f := range list {
			for value, status := range map[string]int{`{"no":["such","value"]}`: 400, `null`: 200} {
				resp, text := postTo(t, ts, path, fmt.Sprintf(`%s,%q:%s}`, start, f.name, value))
				if resp.StatusCode != status || status == 400 && !strings.Contains(text, fmt.Sprintf(`"param":%q`, f.name)) {
					t.Errorf("%s: %s: %d %s", f.name, value, resp.StatusCode, text)
				}
			}
			for _, value := range f.neutral {
				if resp, text := postTo(t, ts, path, fmt.Sprintf(`%s,%q: %s }`, start, f.name, value)); resp.StatusCode != 200 {
					t.Errorf("%s: %s: %d %s", f.name, value, resp.StatusCode, text)
				}
			}
		}
	}
	var b chatBody
	try("/v1/completions", completion, b.unbuiltFields.list())
	try(chatPath, chat, append(b.unbuiltFields.list(), b.unbuiltChat.list()...))
}
