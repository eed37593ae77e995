package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Chat turns messages into a prompt as a model was taught to read them.
type Chat interface {
	// Render returns the prompt. With addGenerationPrompt it ends where the
	// assistant's answer begins. Messages that the model's template does not take are
	// a *RefusedError; any other error is the template's own.
	Render(messages []Message, addGenerationPrompt bool) (string, error)
}

// RefusedError says why a template does not take the messages.
type RefusedError struct{ Reason string }

// Error implements error.
func (e *RefusedError) Error() string { return e.Reason }

// Message is one message of a chat.
type Message struct {
	Role    string // system, user or assistant
	Content string
}

// The roles of messages.
const (
	roleSystem    = "system"
	roleDeveloper = "developer" // OpenAI's newer name for system
	roleUser      = "user"
	roleAssistant = "assistant"
)

// chatBody is the body of POST /v1/chat/completions.
type chatBody struct {
	fields
	Messages json.RawMessage `json:"messages"`

	Logprobs    *bool `json:"logprobs"`
	TopLogprobs *int  `json:"top_logprobs"`

	unbuiltChat
}

// check implements requestBody.
func (b *chatBody) check(models []Model) (*completion, *Error) {
	if err := refuseUnbuilt(b.unbuiltChat.list()); err != nil {
		return nil, err
	}
	c, err := b.fields.check(models)
	if err != nil {
		return nil, err
	}
	if err := c.parseChatLogprobs(b.Logprobs, b.TopLogprobs); err != nil {
		return nil, err
	}
	messages, err := parseMessages(b.Messages)
	if err != nil {
		return nil, err
	}
	if err := c.render(messages); err != nil {
		return nil, err
	}
	preset := max(1, min(defaultChatTokens, c.model.Context-len(c.prompts[0].ids)))
	return c, c.lengths(&b.fields, "messages", preset)
}

// form implements requestBody.
func (b *chatBody) form(c *completion) form { return newChatForm(c) }

// parseMessages checks the messages. Fields are named as in messages[2].content.
func parseMessages(raw json.RawMessage) ([]Message, *Error) {
	if isNull(raw) {
		return nil, badField("messages", "messages is missing")
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return nil, badField("messages", "messages must be an array of messages, {role, content}")
	}
	if len(list) == 0 || len(list) > maxMessages {
		return nil, badField("messages", "messages has %d entries: want 1 to %d", len(list), maxMessages)
	}
	out := make([]Message, len(list))
	for i, entry := range list {
		m, err := parseMessage(fmt.Sprintf("messages[%d]", i), entry)
		if err != nil {
			return nil, err
		}
		out[i] = m
	}
	return out, nil
}

// parseMessage checks the message at path.
func parseMessage(path string, raw json.RawMessage) (Message, *Error) {
	var m struct {
		Role         json.RawMessage `json:"role"`
		Content      json.RawMessage `json:"content"`
		ToolCalls    json.RawMessage `json:"tool_calls"`
		FunctionCall json.RawMessage `json:"function_call"`
	}
	if isNull(raw) || json.Unmarshal(raw, &m) != nil {
		return Message{}, badField(path, "%s must be an object, {role, content}", path)
	}
	var role string
	if isNull(m.Role) || json.Unmarshal(m.Role, &role) != nil {
		return Message{}, badField(path+".role", "%s.role must be system, developer, user or assistant", path)
	}
	switch role {
	case roleDeveloper:
		role = roleSystem // no template knows the newer name
	case roleSystem, roleUser, roleAssistant:
	case "tool", "function":
		return Message{}, unsupported(path+".role", "%s.role is %q: tools are not supported yet", path, role)
	default:
		return Message{}, badField(path+".role", "%s.role is %.40q: want system, developer, user or assistant", path, role)
	}
	switch {
	case !isOneOf(m.ToolCalls, "[]"):
		return Message{}, unsupported(path+".tool_calls", "%s.tool_calls: tools are not supported yet", path)
	case !isNull(m.FunctionCall):
		return Message{}, unsupported(path+".function_call", "%s.function_call: functions are not supported yet", path)
	}
	content, err := parseContent(path+".content", m.Content)
	return Message{Role: role, Content: content}, err
}

// parseContent accepts a string, or an array of text parts, which become lines.
func parseContent(path string, raw json.RawMessage) (string, *Error) {
	if isNull(raw) {
		return "", badField(path, "%s is missing", path)
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var parts []json.RawMessage
	if json.Unmarshal(raw, &parts) != nil {
		return "", badField(path, `%s must be a string or an array of parts, {"type": "text", "text"}`, path)
	}
	if len(parts) == 0 || len(parts) > maxParts {
		return "", badField(path, "%s has %d parts: want 1 to %d", path, len(parts), maxParts)
	}
	lines := make([]string, len(parts))
	for i, entry := range parts {
		at := fmt.Sprintf("%s[%d]", path, i)
		var part struct {
			Type string  `json:"type"`
			Text *string `json:"text"`
		}
		if isNull(entry) || json.Unmarshal(entry, &part) != nil {
			return "", badField(at, `%s must be an object, {"type": "text", "text"}`, at)
		}
		if part.Type != "text" {
			return "", unsupported(at+".type", "%s.type is %.40q: only text is supported", at, part.Type)
		}
		if part.Text == nil {
			return "", badField(at+".text", "%s.text is missing", at)
		}
		lines[i] = *part.Text
	}
	return strings.Join(lines, "\n"), nil
}

// render makes the prompt of the messages.
func (c *completion) render(messages []Message) *Error {
	if c.model.Chat == nil {
		return newError(http.StatusServiceUnavailable, "no_chat_template",
			"this node cannot render chats for model %s: put the model file in [models] dirs", c.model.Name)
	}
	text, err := c.model.Chat.Render(messages, true)
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return badField("messages", "the chat template of %s does not take these messages: %s", c.model.Name, refused.Reason)
	}
	if err != nil {
		return newError(http.StatusInternalServerError, "chat_template_failed", "the chat template of %s: %v", c.model.Name, err)
	}
	ids, err := c.model.Tokenizer.Encode(text)
	if err != nil {
		return badField("messages", "the messages cannot be tokenized: %v", err)
	}
	if len(ids) == 0 {
		return badField("messages", "the chat template of %s makes an empty prompt of these messages", c.model.Name)
	}
	c.prompts = []prompt{{ids: ids}}
	return nil
}
