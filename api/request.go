package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/kevlard/kevlard"
)

// fields are those of completions and chats alike. Fields that we do not know are
// ignored, as OpenAI does.
type fields struct {
	Model         string `json:"model"`
	Stream        bool   `json:"stream"`
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
	ReturnTokenIDs      bool            `json:"return_token_ids"`
	Session             string          `json:"session"`

	PresencePenalty   *float64        `json:"presence_penalty"`
	FrequencyPenalty  *float64        `json:"frequency_penalty"`
	RepetitionPenalty *float64        `json:"repetition_penalty"`
	LogitBias         json.RawMessage `json:"logit_bias"`

	N *int `json:"n"`

	// Known, and refused where it would change the answer.
	ResponseFormat *struct {
		Type string `json:"type"`
	} `json:"response_format"`
	unbuiltFields
}

// requestBody is the body of a completion or a chat.
type requestBody interface {
	common() *fields
	// check turns the body into a completion, or says what is wrong with it.
	check(models []Model) (*completion, *Error)
	// form says how the answer is written down.
	form(c *completion) form
}

// completion is a request that passed all checks.
type completion struct {
	gen      GenRequest // what all choices have in common
	prompts  []prompt
	n        int // answers to each prompt
	choices  []choice
	model    Model
	label    string // the client's name of the session; only with one choice
	stops    []string
	stream   bool
	usage    bool // a last chunk with usage
	echo     bool // the answer starts with the prompt
	tokenIDs bool // the answer carries token ids
	logprobs bool // the answer carries log probabilities

	answer  string // the id of the answer, without prefix
	created int64  // when it was begun, unix time
	at      place  // what the client has
	alive   func() bool
}

// defaultTemperature is OpenAI's.
const defaultTemperature = 1.0

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
		// encoding/json puts the name of an embedded struct into the path.
		field := strings.TrimPrefix(wrong.Field, "fields.")
		return badField(field, "%s must be %s, not %s", field, goKind(wrong.Type.Kind().String()), article(wrong.Value))
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

// common implements requestBody.
func (b *fields) common() *fields { return b }

// check checks the fields that all requests have.
func (b *fields) check(models []Model) (*completion, *Error) {
	if err := b.refuse(); err != nil {
		return nil, err
	}
	model, err := findModel(models, b.Model)
	if err != nil {
		return nil, err
	}
	c := &completion{model: model, stream: b.Stream, tokenIDs: b.ReturnTokenIDs}
	if b.StreamOptions != nil {
		if !b.Stream {
			return nil, badField("stream_options", "stream_options is only allowed when stream is true")
		}
		c.usage = b.StreamOptions.IncludeUsage
	}
	if c.gen.Sampling, err = b.sampling(model.Vocab); err != nil {
		return nil, err
	}
	if c.stops, err = parseStops(b.Stop); err != nil {
		return nil, err
	}
	if c.gen.Session, err = sessionName(b.Session); err != nil {
		return nil, err
	}
	c.label = string(c.gen.Session)
	c.gen.Model = model.ID
	c.gen.IgnoreEOG = b.IgnoreEOS
	if err := c.needTokenizer(); err != nil {
		return nil, err
	}
	c.gen.EOG = model.Tokenizer.EndOfGeneration()
	return c, nil
}

// needTokenizer says what to do where there is none.
func (c *completion) needTokenizer() *Error {
	if c.model.Tokenizer != nil {
		return nil
	}
	return newError(http.StatusServiceUnavailable, "no_tokenizer",
		"no tokenizer for model %s on this node: put the model file in [models] dirs", c.model.Name)
}

// refuse names the first field whose effect we do not have.
func (b *fields) refuse() *Error {
	if b.ResponseFormat != nil && b.ResponseFormat.Type != "text" {
		return unsupported("response_format", "response_format is not supported yet: only text is")
	}
	return refuseUnbuilt(b.unbuiltFields.list())
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// isOneOf reports whether raw is missing, null, or one of these documents, which
// have no white space.
func isOneOf(raw json.RawMessage, documents ...string) bool {
	return isNull(raw) || slices.Contains(documents, string(bytes.Join(bytes.Fields(raw), nil)))
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
	if !isPlain(name, maxSessionName) {
		return "", badField("session", "session must have 1 to %d letters, digits, '.', '_' or '-'", maxSessionName)
	}
	return kevlard.SessionID(name), nil
}

// isPlain reports whether name has 1 to limit letters, digits, '.', '_' or '-'.
func isPlain(name string, limit int) bool {
	odd := func(r rune) bool {
		ok := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
		return !ok
	}
	return name != "" && len(name) <= limit && !strings.ContainsFunc(name, odd)
}

// lengths checks how many answers there may be, and how long, and makes the choices.
// The field is the one that holds the prompts; preset is the limit of a request that
// gives none.
func (c *completion) lengths(b *fields, field string, preset int) *Error {
	if err := c.countChoices(b.N); err != nil {
		return err
	}
	name, limit := "max_tokens", preset
	switch {
	case b.MaxTokens != nil && b.MaxCompletionTokens != nil && *b.MaxTokens != *b.MaxCompletionTokens:
		return badField("max_completion_tokens", "max_completion_tokens is %d, but its older name max_tokens is %d: give one of them",
			*b.MaxCompletionTokens, *b.MaxTokens)
	case b.MaxCompletionTokens != nil:
		name, limit = "max_completion_tokens", *b.MaxCompletionTokens
	case b.MaxTokens != nil:
		limit = *b.MaxTokens
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
	for i, p := range c.prompts {
		if n := len(p.ids); n >= c.model.Context || limit > c.model.Context-n {
			e := badField(numbered(field, i, len(c.prompts)), "the model's context is %d tokens, but the prompt has %d and %s is %d: shorten one of them",
				c.model.Context, n, name, limit)
			code := "context_length_exceeded"
			e.Code = &code
			return e
		}
	}
	c.choose(limit)
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
