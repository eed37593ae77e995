package chat

import (
	"fmt"
	"strings"
)

// Plain returns the template of models that have none: base models, which know no
// turns but go on with a transcript. Each message is its role, a colon, a space,
// its trimmed content and an empty line; the place of the answer is "Assistant:":
//
//	System: Answer briefly.
//
//	User: What is a ring?
//
//	Assistant:
//
// Nothing ends an answer but the model's own end token, so clients of such models
// should send the stop string "\nUser:".
func Plain() *Template { return &Template{} }

// plain renders the format of Plain.
func plain(messages []Message, addGenerationPrompt bool) (string, error) {
	var b strings.Builder
	for _, m := range messages {
		name, ok := map[string]string{"system": "System", "user": "User", "assistant": "Assistant"}[m.Role]
		if !ok {
			return "", &RefusedError{fmt.Sprintf("role %q: want system, user or assistant", shorten(m.Role))}
		}
		b.WriteString(name + ": " + strings.TrimSpace(m.Content) + "\n\n")
		if b.Len() > maxOutput {
			return "", fmt.Errorf("render chat: the prompt is larger than %d bytes", maxOutput)
		}
	}
	if addGenerationPrompt {
		b.WriteString("Assistant:")
	}
	return b.String(), nil
}
