package api

import "encoding/json"

// unbuilt is a field that clients know and we do not, yet. To ignore it would give
// another answer than was asked for, so it is refused, except with a value that
// changes nothing.
type unbuilt struct {
	name    string
	value   json.RawMessage
	neutral []string // the JSON of those values; null always is one
}

// refuseUnbuilt names the first field whose effect we do not have.
func refuseUnbuilt(list []unbuilt) *Error {
	for _, f := range list {
		if !isOneOf(f.value, f.neutral...) {
			return unsupported(f.name, "%s is not supported yet: leave the field out", f.name)
		}
	}
	return nil
}

// unbuiltFields are those of completions and chats alike; vLLM has them.
type unbuiltFields struct {
	GuidedJSON        json.RawMessage `json:"guided_json"`
	GuidedRegex       json.RawMessage `json:"guided_regex"`
	GuidedChoice      json.RawMessage `json:"guided_choice"`
	GuidedGrammar     json.RawMessage `json:"guided_grammar"`
	StructuredOutputs json.RawMessage `json:"structured_outputs"`
	StopTokenIDs      json.RawMessage `json:"stop_token_ids"`
	BadWords          json.RawMessage `json:"bad_words"`
	AllowedTokenIDs   json.RawMessage `json:"allowed_token_ids"`
	PromptLogprobs    json.RawMessage `json:"prompt_logprobs"`
	UseBeamSearch     json.RawMessage `json:"use_beam_search"`
}

func (f *unbuiltFields) list() []unbuilt {
	return []unbuilt{
		{"guided_json", f.GuidedJSON, nil},
		{"guided_regex", f.GuidedRegex, nil},
		{"guided_choice", f.GuidedChoice, nil},
		{"guided_grammar", f.GuidedGrammar, nil},
		{"structured_outputs", f.StructuredOutputs, nil},
		{"stop_token_ids", f.StopTokenIDs, []string{`[]`}},
		{"bad_words", f.BadWords, []string{`[]`}},
		{"allowed_token_ids", f.AllowedTokenIDs, nil},
		{"prompt_logprobs", f.PromptLogprobs, nil},
		{"use_beam_search", f.UseBeamSearch, []string{`false`}},
	}
}

// unbuiltChat are those of chats.
type unbuiltChat struct {
	Tools            json.RawMessage `json:"tools"`
	ToolChoice       json.RawMessage `json:"tool_choice"`
	Functions        json.RawMessage `json:"functions"`
	FunctionCall     json.RawMessage `json:"function_call"`
	Modalities       json.RawMessage `json:"modalities"`
	Audio            json.RawMessage `json:"audio"`
	WebSearchOptions json.RawMessage `json:"web_search_options"`

	// Of vLLM.
	Echo                 json.RawMessage `json:"echo"`
	AddGenerationPrompt  json.RawMessage `json:"add_generation_prompt"`
	ContinueFinalMessage json.RawMessage `json:"continue_final_message"`
	ChatTemplate         json.RawMessage `json:"chat_template"`
	ChatTemplateKwargs   json.RawMessage `json:"chat_template_kwargs"`
}

func (f *unbuiltChat) list() []unbuilt {
	return []unbuilt{
		{"tools", f.Tools, []string{`[]`}},
		{"tool_choice", f.ToolChoice, []string{`"none"`, `"auto"`}}, // auto without tools is what some clients always send
		{"functions", f.Functions, []string{`[]`}},
		{"function_call", f.FunctionCall, []string{`"none"`}},
		{"modalities", f.Modalities, []string{`["text"]`}},
		{"audio", f.Audio, nil},
		{"web_search_options", f.WebSearchOptions, nil},
		{"echo", f.Echo, []string{`false`}},
		{"add_generation_prompt", f.AddGenerationPrompt, []string{`true`}},
		{"continue_final_message", f.ContinueFinalMessage, []string{`false`}},
		{"chat_template", f.ChatTemplate, nil},
		{"chat_template_kwargs", f.ChatTemplateKwargs, []string{`{}`}},
	}
}
