package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/kevlard/kevlard"
)

// completionBody is the body of POST /v1/completions. Fields that we do not know
// are ignored, as OpenAI does.
type completionBody struct {
	Model         string          `json:"model"`
	Prompt        json.RawMessage `json:"prompt"`
	Stream        bool            `json:"stream"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	MinTokens           *int            `json:"min_tokens"`
	Temperature         *float64        `json:"temperature"`
	TopP                *float64        `json:"top_p"`
	TopK                *int            `json:"top_k"`
	MinP                *float64        `json:"min_p"`
	Seed                *int64          `json:"seed"`
	Stop                json.RawMessage `json:"stop"`
	IgnoreEOS           bool            `json:"ignore_eos"`
	Echo                bool            `json:"echo"`
	ReturnTokenIDs      bool            `json:"return_token_ids"`
	Session             string          `json:"session"`

	// Known, and refused where they would change the answer.
	N                 *int            `json:"n"`
	BestOf            *int            `json:"best_of"`
	Logprobs          json.RawMessage `json:"logprobs"`
	Suffix            *string         `json:"suffix"`
	PresencePenalty   *float64        `json:"presence_penalty"`
	FrequencyPenalty  *float64        `json:"frequency_penalty"`
	RepetitionPenalty *float64        `json:"repetition_penalty"`
	LogitBias         json.RawMessage `json:"logit_bias"`
	ResponseFormat    *struct {
		Type string `json:"type"`
	} `json:"response_format"`
}

// completion is a request that passed all checks.
type completion struct {
	gen      GenRequest
	model    Model
	stops    []string
	stream   bool
	usage    bool   // a last chunk with usage
	echo     bool   // the answer starts with the prompt
	echoText string // the prompt as text
	tokenIDs bool   // the answer carries token ids
}

// The defaults of OpenAI's completions.
const (
	defaultMaxTokens   = 16
	defaultTemperature = 1.0
)

// decodeBody reads one JSON object.
func decodeBody(r io.Reader, into any) *Error {
	dec := json.NewDecoder(r)
	err := dec.Decode(into)
	if err == nil {
		// A second document would be silently lost.
		if _, err = dec.Token(); err == io.EOF {
			return nil
		}
		if err == nil || !isTooLarge(err) {
			return newError(http.StatusBadRequest, "invalid_json", "the body must be one JSON object: there is more after it")
		}
	}
	return bodyError(err)
}

// bodyError says why a body could not be read or decoded.
func bodyError(err error) *Error {
	if isTooLarge(err) {
		return newError(http.StatusRequestEntityTooLarge, "request_too_large", "the body is larger than %d bytes", maxBody)
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if wrong.Field == "" {
			return newError(http.StatusBadRequest, "invalid_json", "the body must be a JSON object, not %s", article(wrong.Value))
		}
		return badField(wrong.Field, "%s must be %s, not %s", wrong.Field, goKind(wrong.Type.Kind().String()), article(wrong.Value))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return newError(http.StatusRequestTimeout, "request_timeout", "the body did not arrive within %v", bodyTimeout)
	}
	if errors.Is(err, io.EOF) {
		return newError(http.StatusBadRequest, "invalid_json", "the body is empty: want a JSON object")
	}
	return newError(http.StatusBadRequest, "invalid_json", "the body is not valid JSON: %v", err)
}

func isTooLarge(err error) bool {
	_, ok := errors.AsType[*http.MaxBytesError](err)
	return ok
}

// goKind says in JSON's words what a field wants.
func goKind(kind string) string {
	switch {
	case strings.HasPrefix(kind, "int"):
		return "a whole number"
	case strings.HasPrefix(kind, "float"):
		return "a number"
	case kind == "bool":
		return "true or false"
	case kind == "string":
		return "a string"
	}
	return "an object"
}

// article puts encoding/json's word for a JSON value into a sentence.
func article(value string) string {
	word, exact, _ := strings.Cut(value, " ")
	if exact != "" {
		return exact
	}
	switch word {
	case "bool":
		return "a boolean"
	case "array", "object":
		return "an " + word
	}
	return "a " + value
}

// check turns the body into a completion, or says what is wrong with it.
func (b *completionBody) check(models []Model) (*completion, *Error) {
	if err := b.refuse(); err != nil {
		return nil, err
	}
	model, err := findModel(models, b.Model)
	if err != nil {
		return nil, err
	}
	c := &completion{model: model, stream: b.Stream, echo: b.Echo, tokenIDs: b.ReturnTokenIDs}
	if b.StreamOptions != nil {
		if !b.Stream {
			return nil, badField("stream_options", "stream_options is only allowed when stream is true")
		}
		c.usage = b.StreamOptions.IncludeUsage
	}
	if c.gen.Sampling, err = b.sampling(); err != nil {
		return nil, err
	}
	if c.stops, err = parseStops(b.Stop); err != nil {
		return nil, err
	}
	if c.gen.Session, err = sessionName(b.Session); err != nil {
		return nil, err
	}
	if err := c.prompt(b.Prompt); err != nil {
		return nil, err
	}
	c.gen.Model = model.ID
	c.gen.IgnoreEOG = b.IgnoreEOS
	c.gen.EOG = model.Tokenizer.EndOfGeneration()
	return c, c.lengths(b)
}

// refuse names the first field whose effect we do not have.
func (b *completionBody) refuse() *Error {
	not := func(v *float64, neutral float64) bool { return v != nil && *v != neutral }
	switch {
	case b.N != nil && *b.N != 1:
		return unsupported("n", "n is %d: only 1 is supported", *b.N)
	case b.BestOf != nil && *b.BestOf != 1:
		return unsupported("best_of", "best_of is %d: only 1 is supported", *b.BestOf)
	case !isNull(b.Logprobs) && string(b.Logprobs) != "false":
		return unsupported("logprobs", "logprobs are not supported yet: leave the field out")
	case b.Suffix != nil && *b.Suffix != "":
		return unsupported("suffix", "suffix is not supported: leave the field out")
	case not(b.PresencePenalty, 0):
		return unsupported("presence_penalty", "presence_penalty is not supported yet: only 0 is")
	case not(b.FrequencyPenalty, 0):
		return unsupported("frequency_penalty", "frequency_penalty is not supported yet: only 0 is")
	case not(b.RepetitionPenalty, 1):
		return unsupported("repetition_penalty", "repetition_penalty is not supported yet: only 1 is")
	case !isNull(b.LogitBias) && string(bytes.Join(bytes.Fields(b.LogitBias), nil)) != "{}":
		return unsupported("logit_bias", "logit_bias is not supported yet: leave the field out")
	case b.ResponseFormat != nil && b.ResponseFormat.Type != "text":
		return unsupported("response_format", "response_format is not supported yet: only text is")
	}
	return nil
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// sampling checks the sampling fields. A seed that the client did not choose is
// chosen here, so that the session can be replayed.
func (b *completionBody) sampling() (kevlard.Sampling, *Error) {
	s := kevlard.Sampling{Temperature: defaultTemperature, Seed: rand.Uint64()}
	if b.Seed != nil {
		s.Seed = uint64(*b.Seed)
	}
	if t := b.Temperature; t != nil {
		if *t < 0 || *t > 2 {
			return s, badField("temperature", "temperature is %v: want 0 to 2", *t)
		}
		s.Temperature = float32(*t)
	}
	if p := b.TopP; p != nil {
		if *p <= 0 || *p > 1 {
			return s, badField("top_p", "top_p is %v: want more than 0 and at most 1", *p)
		}
		s.TopP = float32(*p)
	}
	if p := b.MinP; p != nil {
		if *p < 0 || *p > 1 {
			return s, badField("min_p", "min_p is %v: want 0 to 1", *p)
		}
		s.MinP = float32(*p)
	}
	if k := b.TopK; k != nil {
		if *k < -1 {
			return s, badField("top_k", "top_k is %d: want 1 or more, or 0 or -1 to keep all", *k)
		}
		s.TopK = max(*k, 0)
	}
	return s, nil
}

func parseStops(raw json.RawMessage) ([]string, *Error) {
	if isNull(raw) {
		return nil, nil
	}
	var stops []string
	var one string
	if json.Unmarshal(raw, &one) == nil {
		stops = []string{one}
	} else if json.Unmarshal(raw, &stops) != nil {
		return nil, badField("stop", "stop must be a string or an array of up to %d strings", maxStops)
	}
	if len(stops) > maxStops {
		return nil, badField("stop", "stop has %d strings: at most %d", len(stops), maxStops)
	}
	for _, s := range stops {
		if s == "" || len(s) > maxStopBytes {
			return nil, badField("stop", "a stop string has %d bytes: want 1 to %d", len(s), maxStopBytes)
		}
	}
	return stops, nil
}

// sessionName checks a client's name for the session; there need not be one.
func sessionName(name string) (kevlard.SessionID, *Error) {
	if name == "" {
		return "", nil
	}
	ok := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
	}
	if len(name) > maxSessionName || strings.ContainsFunc(name, func(r rune) bool { return !ok(r) }) {
		return "", badField("session", "session must have 1 to %d letters, digits, '.', '_' or '-'", maxSessionName)
	}
	return kevlard.SessionID(name), nil
}

// prompt turns the prompt into token ids.
func (c *completion) prompt(raw json.RawMessage) *Error {
	if c.model.Tokenizer == nil {
		return newError(http.StatusServiceUnavailable, "no_tokenizer",
			"no tokenizer for model %s on this node: put the model file in [models] dirs", c.model.Name)
	}
	text, ids, err := parsePrompt(raw)
	if err != nil {
		return err
	}
	if ids == nil {
		encoded, encErr := c.model.Tokenizer.Encode(text)
		if encErr != nil {
			return badField("prompt", "the prompt cannot be tokenized: %v", encErr)
		}
		ids = encoded
	} else if c.echo {
		text = decodeAll(c.model.Tokenizer, ids)
	}
	for _, t := range ids {
		if t < 0 || int(t) >= c.model.Vocab {
			return badField("prompt", "token id %d is not in the vocabulary of %s: want 0 to %d", t, c.model.Name, c.model.Vocab-1)
		}
	}
	if len(ids) == 0 {
		return badField("prompt", "the prompt is empty")
	}
	c.gen.Prompt = ids
	if c.echo {
		c.echoText = text
	}
	return nil
}

// parsePrompt accepts a string, token ids, or an array of one of these.
func parsePrompt(raw json.RawMessage) (text string, ids []kevlard.Token, _ *Error) {
	if isNull(raw) {
		return "", nil, badField("prompt", "prompt is missing")
	}
	if json.Unmarshal(raw, &text) == nil {
		return text, nil, nil
	}
	// encoding/json takes null for 0 inside an array of numbers.
	if !bytes.Contains(raw, []byte("null")) && json.Unmarshal(raw, &ids) == nil {
		if len(ids) == 0 {
			return "", nil, badField("prompt", "the prompt is empty")
		}
		return "", ids, nil
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return "", nil, badField("prompt", "prompt must be a string, an array of one string, or an array of token ids")
	}
	nested := func(m json.RawMessage) bool { return len(m) > 0 && (m[0] == '"' || m[0] == '[') }
	if !slices.ContainsFunc(list, func(m json.RawMessage) bool { return !nested(m) }) {
		if len(list) > 1 {
			return "", nil, badField("prompt", "prompt has %d entries: only one prompt a request is supported yet", len(list))
		}
		if json.Unmarshal(list[0], &text) == nil {
			return text, nil, nil
		}
		if !bytes.Contains(list[0], []byte("null")) && json.Unmarshal(list[0], &ids) == nil && len(ids) > 0 {
			return "", ids, nil
		}
	}
	return "", nil, badField("prompt", "prompt must be a string, an array of one string, or an array of token ids")
}

// lengths checks how much may be generated.
func (c *completion) lengths(b *completionBody) *Error {
	name, limit := "max_tokens", defaultMaxTokens
	if b.MaxTokens != nil {
		limit = *b.MaxTokens
	}
	if b.MaxCompletionTokens != nil { // the newer name wins
		name, limit = "max_completion_tokens", *b.MaxCompletionTokens
	}
	if limit < 1 {
		return badField(name, "%s is %d: want at least 1", name, limit)
	}
	if m := b.MinTokens; m != nil {
		if *m < 0 || *m > limit {
			return badField("min_tokens", "min_tokens is %d: want 0 to %s, which is %d", *m, name, limit)
		}
		c.gen.MinTokens = *m
	}
	if n := len(c.gen.Prompt); n >= c.model.Context || limit > c.model.Context-n {
		e := badField("prompt", "the model's context is %d tokens, but the prompt has %d and %s is %d: shorten one of them",
			c.model.Context, n, name, limit)
		code := "context_length_exceeded"
		e.Code = &code
		return e
	}
	c.gen.MaxTokens = limit
	return nil
}

// findModel finds a model by name or ID.
func findModel(models []Model, want string) (Model, *Error) {
	var found []Model
	names := make([]string, 0, len(models))
	for _, m := range models {
		if m.Name == want || m.ID.String() == want {
			found = append(found, m)
		}
		names = append(names, m.Name)
	}
	param := "model"
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return Model{}, badField(param, "the name %q is shared by %d models: use the id, %s or %s", want, len(found), found[0].ID, found[1].ID)
	}
	available := "none is served now"
	if len(names) > 0 {
		available = "available: " + strings.Join(slices.Compact(names), ", ")
	}
	e := newError(http.StatusNotFound, "model_not_found", "the model %q does not exist (%s)", want, available)
	if want == "" {
		e.Message = "model is missing (" + available + ")"
	}
	e.Param = &param
	return Model{}, e
}

func decodeAll(t Tokenizer, ids []kevlard.Token) string {
	var b strings.Builder
	d := t.NewDecoder()
	for _, id := range ids {
		b.WriteString(d.Push(id))
	}
	b.WriteString(d.Flush())
	return b.String()
}
