package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/kevlard/kevlard"
)

const chatPath = "/v1/chat/completions"

// TestBadChats checks that each mistake in a chat gets its status and one exact
// envelope that names the field.
func TestBadChats(t *testing.T) {
	_, ts := newTestServer(t, &toy{}, 0)
	const hi = `{"model":"toy","messages":[{"role":"user","content":"hi"}]`
	messages := func(list string) string { return `{"model":"toy","messages":` + list + `}` }
	user := func(content string) string { return messages(`[{"role":"user","content":` + content + `}]`) }
	for _, c := range []struct {
		name, body string
		status     int
		param      string // "-": null
		code       string // "-": null
		message    string
	}{
		{"empty body", ``, 400, "-", "invalid_json", "the body is empty: want a JSON object"},
		{"not JSON", `{"messages":[}`, 400, "-", "invalid_json", "the body is not valid JSON: invalid character '}' looking for beginning of value"},
		{"no messages", `{"model":"toy","prompt":"a"}`, 400, "messages", "-", "messages is missing"},
		{"messages text", messages(`"hi"`), 400, "messages", "-", "messages must be an array of messages, {role, content}"},
		{"no message", messages(`[]`), 400, "messages", "-", "messages has 0 entries: want 1 to 4096"},
		{"many messages", messages("[" + strings.Repeat("0,", maxMessages) + "0]"), 400, "messages", "-", "messages has 4097 entries: want 1 to 4096"},
		{"message text", messages(`["hi"]`), 400, "messages[0]", "-", "messages[0] must be an object, {role, content}"},
		{"message null", messages(`[null]`), 400, "messages[0]", "-", "messages[0] must be an object, {role, content}"},
		{"no role", messages(`[{"content":"hi"}]`), 400, "messages[0].role", "-", "messages[0].role must be system, developer, user or assistant"},
		{"role number", messages(`[{"role":1,"content":"hi"}]`), 400, "messages[0].role", "-", "messages[0].role must be system, developer, user or assistant"},
		{"empty role", messages(`[{"role":"","content":"hi"}]`), 400, "messages[0].role", "-", `messages[0].role is "": want system, developer, user or assistant`},
		{"unknown role", messages(`[{"role":"user","content":"hi"},{"role":"boss","content":"hi"}]`), 400, "messages[1].role", "-", `messages[1].role is "boss": want system, developer, user or assistant`},
		{"tool role", messages(`[{"role":"tool","content":"hi"}]`), 400, "messages[0].role", "unsupported_parameter", `messages[0].role is "tool": tools are not supported yet`},
		{"tool calls", messages(`[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}]`), 400, "messages[0].tool_calls", "unsupported_parameter", "messages[0].tool_calls: tools are not supported yet"},
		{"function call", messages(`[{"role":"assistant","content":"","function_call":{}}]`), 400, "messages[0].function_call", "unsupported_parameter", "messages[0].function_call: functions are not supported yet"},
		{"no content", messages(`[{"role":"user"}]`), 400, "messages[0].content", "-", "messages[0].content is missing"},
		{"content number", user(`1`), 400, "messages[0].content", "-", `messages[0].content must be a string or an array of parts, {"type": "text", "text"}`},
		{"content object", user(`{"type":"text","text":"hi"}`), 400, "messages[0].content", "-", `messages[0].content must be a string or an array of parts, {"type": "text", "text"}`},
		{"no parts", user(`[]`), 400, "messages[0].content", "-", "messages[0].content has 0 parts: want 1 to 1024"},
		{"part text", user(`["hi"]`), 400, "messages[0].content[0]", "-", `messages[0].content[0] must be an object, {"type": "text", "text"}`},
		{"image part", user(`[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"x"}}]`), 400, "messages[0].content[1].type", "unsupported_parameter", `messages[0].content[1].type is "image_url": only text is supported`},
		{"audio part", user(`[{"type":"input_audio"}]`), 400, "messages[0].content[0].type", "unsupported_parameter", `messages[0].content[0].type is "input_audio": only text is supported`},
		{"part without text", user(`[{"type":"text"}]`), 400, "messages[0].content[0].text", "-", "messages[0].content[0].text is missing"},
		{"template refuses", messages(`[{"role":"user","content":"hi"},{"role":"developer","content":"hi"}]`), 400, "messages", "-", "the chat template of toy does not take these messages: system comes first"},
		{"template broken", user(`"broken"`), 500, "-", "chat_template_failed", "the chat template of toy: line 1: no such filter"},
		{"no tokenizer", `{"model":"bare","messages":[{"role":"user","content":"hi"}]}`, 503, "-", "no_tokenizer", "no tokenizer for model bare on this node: put the model file in [models] dirs"},
		{"no model", `{"messages":[{"role":"user","content":"hi"}]}`, 404, "model", "model_not_found", "model is missing (available: toy, bare)"},
		{"too long", user(`"` + strings.Repeat("a", 85) + `"`), 400, "messages", "context_length_exceeded", "the model's context is 100 tokens, but the prompt has 101 and max_tokens is 1: shorten one of them"},
		{"limit too long", hi + `,"max_completion_tokens":90}`, 400, "messages", "context_length_exceeded", "the model's context is 100 tokens, but the prompt has 18 and max_completion_tokens is 90: shorten one of them"},
		{"both limits", hi + `,"max_tokens":1,"max_completion_tokens":2}`, 400, "max_completion_tokens", "-", "max_completion_tokens is 2, but its older name max_tokens is 1: give one of them"},
		{"limit 0", hi + `,"max_completion_tokens":0}`, 400, "max_completion_tokens", "-", "max_completion_tokens is 0: want at least 1"},
		{"limit text", hi + `,"max_completion_tokens":"5"}`, 400, "max_completion_tokens", "-", "max_completion_tokens must be a whole number, not a string"},
		{"n", hi + `,"n":9}`, 400, "n", "-", "n is 9: want 1 to 8"},
		{"n 0", hi + `,"n":0}`, 400, "n", "-", "n is 0: want 1 to 8"},
		{"n with a session", hi + `,"n":2,"session":"s"}`, 400, "session", "-", "session names one answer, and the request is for 2: leave it out"},
		{"logprobs", hi + `,"logprobs":1}`, 400, "logprobs", "-", "logprobs must be true or false, not a number"},
		{"top_logprobs", hi + `,"top_logprobs":3}`, 400, "top_logprobs", "-", "top_logprobs is 3, but logprobs is not true: set it, or leave both out"},
		{"top_logprobs off", hi + `,"top_logprobs":3,"logprobs":false}`, 400, "top_logprobs", "-", "top_logprobs is 3, but logprobs is not true: set it, or leave both out"},
		{"top_logprobs count", hi + `,"logprobs":true,"top_logprobs":21}`, 400, "top_logprobs", "-", "top_logprobs is 21: want 0 to 20"},
		{"top_logprobs negative", hi + `,"logprobs":true,"top_logprobs":-1}`, 400, "top_logprobs", "-", "top_logprobs is -1: want 0 to 20"},
		{"tools", hi + `,"tools":[{"type":"function"}]}`, 400, "tools", "unsupported_parameter", "tools is not supported yet: leave the field out"},
		{"tool_choice", hi + `,"tool_choice":"required"}`, 400, "tool_choice", "unsupported_parameter", "tool_choice is not supported yet: leave the field out"},
		{"functions", hi + `,"functions":[{"name":"f"}]}`, 400, "functions", "unsupported_parameter", "functions is not supported yet: leave the field out"},
		{"function_call field", hi + `,"function_call":"auto"}`, 400, "function_call", "unsupported_parameter", "function_call is not supported yet: leave the field out"},
		{"modalities", hi + `,"modalities":["text","audio"]}`, 400, "modalities", "unsupported_parameter", "modalities is not supported yet: leave the field out"},
		{"audio", hi + `,"audio":{"voice":"x"}}`, 400, "audio", "unsupported_parameter", "audio is not supported yet: leave the field out"},
		{"web search", hi + `,"web_search_options":{}}`, 400, "web_search_options", "unsupported_parameter", "web_search_options is not supported yet: leave the field out"},
		{"echo", hi + `,"echo":true}`, 400, "echo", "unsupported_parameter", "echo is not supported yet: leave the field out"},
		{"own template", hi + `,"chat_template":"x"}`, 400, "chat_template", "unsupported_parameter", "chat_template is not supported yet: leave the field out"},
		{"template values", hi + `,"chat_template_kwargs":{"enable_thinking":false}}`, 400, "chat_template_kwargs", "unsupported_parameter", "chat_template_kwargs is not supported yet: leave the field out"},
		{"continue", hi + `,"continue_final_message":true}`, 400, "continue_final_message", "unsupported_parameter", "continue_final_message is not supported yet: leave the field out"},
		{"no generation prompt", hi + `,"add_generation_prompt":false}`, 400, "add_generation_prompt", "unsupported_parameter", "add_generation_prompt is not supported yet: leave the field out"},
		{"K12: structured outputs", hi + `,"structured_outputs":{"json":{}}}`, 400, "structured_outputs", "unsupported_parameter", "structured_outputs is not supported yet: leave the field out"},
		{"K12: json_schema", hi + `,"response_format":{"type":"json_schema"}}`, 400, "response_format", "unsupported_parameter", "response_format is not supported yet: only text is"},
		{"stream options", hi + `,"stream_options":{}}`, 400, "stream_options", "-", "stream_options is only allowed when stream is true"},
		{"temperature", hi + `,"temperature":-1}`, 400, "temperature", "-", "temperature is -1: want 0 to 2"},
		{"stop", hi + `,"stop":[1]}`, 400, "stop", "-", "stop must be a string or an array of up to 4 strings"},
		{"stop null", hi + `,"stop":[null]}`, 400, "stop", "-", "a stop string has 0 bytes: want 1 to 1024"},
		{"huge", user(`"` + strings.Repeat("a", maxBody) + `"`), 413, "-", "request_too_large", "the body is larger than 4194304 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, text := postTo(t, ts, chatPath, c.body)
			quote := func(s string) string {
				if s == "-" {
					return "null"
				}
				return fmt.Sprintf("%q", s)
			}
			kind := invalidRequest
			if c.status >= 500 {
				kind = serverError
			}
			want := compact(t, fmt.Sprintf(`{"error":{"message":%q,"type":%q,"param":%s,"code":%s}}`, c.message, kind, quote(c.param), quote(c.code)))
			if got := compact(t, text); resp.StatusCode != c.status || got != want {
				t.Errorf("got  %d %s\nwant %d %s", resp.StatusCode, got, c.status, want)
			}
		})
	}
}

// TestNoChat checks a model that this node can tokenize for but not chat with.
func TestNoChat(t *testing.T) {
	b := chatBody{fields: fields{Model: "toy"}, Messages: []byte(`[{"role":"user","content":"hi"}]`)}
	models := (&toy{}).Models()
	models[0].Chat = nil
	if _, err := b.check(models); err == nil || err.Status != 503 || *err.Code != "no_chat_template" {
		t.Errorf("got %+v", err)
	}
}

// TestChatAccepted checks what becomes of good chats.
func TestChatAccepted(t *testing.T) {
	g := &toy{}
	_, ts := newTestServer(t, g, 0)
	for _, c := range []struct {
		name, body, prompt string
		max                int
	}{
		{"text", `"messages":[{"role":"user","content":"hi"}]`, "user:hi\nassistant:", 82},
		{"turns", `"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"},{"role":"assistant","content":"a"},{"role":"user","content":""}]`, "system:s\nuser:u\nassistant:a\nuser:\nassistant:", 56},
		{"developer", `"messages":[{"role":"developer","content":"d","name":"x"}]`, "system:d\nassistant:", 81},
		{"parts", `"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`, "user:a\nb\nassistant:", 81},
		{"old limit", `"messages":[{"role":"user","content":"hi"}],"max_tokens":7`, "user:hi\nassistant:", 7},
		{"new limit", `"messages":[{"role":"user","content":"hi"}],"max_completion_tokens":8`, "user:hi\nassistant:", 8},
		{"equal limits", `"messages":[{"role":"user","content":"hi"}],"max_completion_tokens":8,"max_tokens":8`, "user:hi\nassistant:", 8},
		{"neutral values", `"messages":[{"role":"assistant","content":"hi","tool_calls":[],"function_call":null,"refusal":null}],"max_tokens":1,"n":1,"logprobs":false,"top_logprobs":0,"tools":[],"tool_choice":"auto","functions":null,"function_call":"none","modalities":["text"],"audio":null,"echo":false,"add_generation_prompt":true,"chat_template_kwargs":{},"response_format":{"type":"text"},"user":"me","store":false,"metadata":{},"stop":null,"stream_options":null`, "assistant:hi\nassistant:", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, text := postTo(t, ts, chatPath, `{"model":"toy",`+c.body+`}`)
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("%d %s", resp.StatusCode, text)
			}
			r := g.requests[len(g.requests)-1]
			if got := decodeAll(toyTokenizer{}, r.Prompt); got != c.prompt || r.MaxTokens != c.max {
				t.Errorf("prompt %q and limit %d, want %q and %d", got, r.MaxTokens, c.prompt, c.max)
			}
		})
	}
}

var varyingChat = regexp.MustCompile(`"id":"(chatcmpl-[0-9A-Z]{26})","object":"(chat\.completion(?:\.chunk)?)","created":(\d+)`)

// normalChat replaces id and time, which must be the same in all chunks.
func normalChat(t *testing.T, text string) string {
	t.Helper()
	text = resumption.ReplaceAllString(text, "")
	first := varyingChat.FindString(text)
	for _, m := range varyingChat.FindAllString(text, -1) {
		if m != first {
			t.Errorf("chunks differ in id or created: %s and %s", m, first)
		}
	}
	return varyingChat.ReplaceAllString(text, `$2`)
}

// delta is the expected line of one chunk of a chat.
func delta(d, reason string) string {
	if reason != "null" {
		reason = `"` + reason + `"`
	}
	return fmt.Sprintf(`data: {chat.completion.chunk,"model":"toy","choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}]}`, d, reason) + "\n\n"
}

func content(text string) string { return delta(fmt.Sprintf(`{"content":%q}`, text), "null") }

var (
	role = delta(`{"role":"assistant","content":""}`, "null")
	stop = delta(`{}`, "stop")
)

// chatLessons are what the toy answers to a user's only message.
func chatLessons() map[string]lesson {
	lost := &kevlard.Failure{Code: "no_route", Status: 503, Message: "nobody serves layers [2,4)"}
	lessons := map[string]lesson{}
	for said, l := range map[string]lesson{
		"plain": {answer: "ab"},
		"empty": {},
		"stop":  {answer: "one\n\ntwo"},
		"burst": {answer: "one\n\ntwo", burst: 8},
		"utf8":  {answer: "a€b"},
		"half":  {answer: "a\xe2\x82"},
		"lost":  {answer: "abc", after: 2, fail: lost},
		"never": {answer: "abc", refuse: lost},
		"early": {answer: "abc", after: 0, fail: lost},
		"busy":  {answer: "abc", refuse: &kevlard.Failure{Code: "session_busy", Status: 409, Message: "session s is running"}},
	} {
		lessons["user:"+said+"\nassistant:"] = l
	}
	return lessons
}

// said is the body of a chat of one message, without its braces.
func said(text string) string {
	return fmt.Sprintf(`"model":"toy","messages":[{"role":"user","content":%q}]`, text)
}

// TestChatTranscripts compares whole streams, byte by byte.
func TestChatTranscripts(t *testing.T) {
	_, ts := newTestServer(t, &toy{lessons: chatLessons()}, 0)
	const lostError = `{"error":{"message":"nobody serves layers [2,4)","type":"server_error","param":null,"code":"no_route"}}`
	for _, c := range []struct {
		name, body string
		status     int
		want       string
	}{
		{"plain", said("plain"), 200, role + content("a") + content("b") + stop + done},
		{"length", said("plain") + `,"max_completion_tokens":1`, 200, role + content("a") + delta(`{}`, "length") + done},
		{"nothing", said("empty"), 200, role + stop + done},
		{"stop over tokens", said("stop") + `,"stop":"\n\n"`, 200, role + content("o") + content("n") + content("e") + stop + done},
		{"stop in one update", said("burst") + `,"stop":["\n\n","x"]`, 200, role + content("one") + stop + done},
		{"character over tokens", said("utf8"), 200, role + content("a") + content("€") + content("b") + stop + done},
		{"half a character", said("half"), 200, role + content("a") + content("\uFFFD") + stop + done},
		{
			"usage", said("plain") + `,"max_tokens":1,"stream_options":{"include_usage":true}`, 200,
			strings.ReplaceAll(role+content("a")+delta(`{}`, "length"), "]}\n", "],\"usage\":null}\n") +
				`data: {chat.completion.chunk,"model":"toy","choices":[],"usage":{"prompt_tokens":21,"completion_tokens":1,"total_tokens":22,"prompt_tokens_details":{"cached_tokens":0}}}` + "\n\n" + done,
		},
		{"no usage", said("plain") + `,"max_tokens":1,"stream_options":{"include_usage":false}`, 200, role + content("a") + delta(`{}`, "length") + done},
		{
			"token ids", said("half") + `,"return_token_ids":true,"max_tokens":2`, 200,
			role + strings.Replace(content("a"), "null}]", `null,"token_ids":[97]}]`, 1) +
				strings.Replace(content("\uFFFD"), "null}]", `null,"token_ids":[226]}]`, 1) + delta(`{}`, "length") + done,
		},
		{"lost in the middle", said("lost"), 200, role + content("a") + content("b") + "data: " + lostError + "\n\n"},
		{"refused", said("never"), 503, lostError + "\n"},
		{"lost before the first token", said("early"), 503, lostError + "\n"},
		{"busy", said("busy"), 409, `{"error":{"message":"session s is running","type":"invalid_request_error","param":null,"code":"session_busy"}}` + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, text := postTo(t, ts, chatPath, `{"stream":true,`+c.body+`}`)
			if got := normalChat(t, text); got != c.want || resp.StatusCode != c.status {
				t.Errorf("got %d\n%s\nwant %d\n%s", resp.StatusCode, got, c.status, c.want)
			}
			if ct := resp.Header.Get("Content-Type"); c.status == 200 && ct != "text/event-stream" {
				t.Errorf("content type %q", ct)
			}
		})
	}
}

// TestChatCollected checks chats whose answer is one document.
func TestChatCollected(t *testing.T) {
	_, ts := newTestServer(t, &toy{lessons: chatLessons()}, 0)
	answer := func(text, reason string, prompt, tokens int) string {
		return fmt.Sprintf(`{chat.completion,"model":"toy","choices":[{"index":0,"message":{"role":"assistant","content":%q,"refusal":null},"logprobs":null,"finish_reason":%q}],`+
			`"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":0}}}`, text, reason, prompt, tokens, prompt+tokens)
	}
	for _, c := range []struct {
		name, body string
		status     int
		want       string
	}{
		{"plain", said("plain"), 200, answer("ab", "stop", 21, 2)},
		{"length", said("plain") + `,"max_tokens":1`, 200, answer("a", "length", 21, 1)},
		{"nothing", said("empty"), 200, answer("", "stop", 21, 0)},
		{"stop", said("stop") + `,"stop":["two"]`, 200, answer("one\n\n", "stop", 20, 8)},
		{"character over tokens", said("utf8"), 200, answer("a€b", "stop", 20, 5)},
		{"token ids", said("plain") + `,"return_token_ids":true`, 200, strings.Replace(answer("ab", "stop", 21, 2), `"stop"}`, `"stop","token_ids":[97,98]}`, 1)},
		{"half an answer is none", said("lost"), 503, `{"error":{"message":"nobody serves layers [2,4)","type":"server_error","param":null,"code":"no_route"}}`},
		{"busy", said("busy"), 409, `{"error":{"message":"session s is running","type":"invalid_request_error","param":null,"code":"session_busy"}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, text := postTo(t, ts, chatPath, `{`+c.body+`}`)
			if got := normalChat(t, text); got != c.want+"\n" || resp.StatusCode != c.status {
				t.Errorf("got %d\n%s\nwant %d\n%s", resp.StatusCode, got, c.status, c.want)
			}
		})
	}
}

// TestChatBytewise sends a chat to a raw socket and reads its stream there, one
// byte at a time.
func TestChatBytewise(t *testing.T) {
	_, ts := newTestServer(t, &toy{lessons: chatLessons()}, 0)
	conn, err := net.Dial("tcp", ts.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(deadline)); err != nil {
		t.Fatal(err)
	}
	body := `{"stream":true,` + said("utf8") + `}`
	for _, b := range []byte(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(body), body)) {
		if _, err := conn.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := http.ReadResponse(bufio.NewReader(iotest.OneByteReader(conn)), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(iotest.OneByteReader(resp.Body))
	if err != nil {
		t.Fatal(err)
	}
	want := role + content("a") + content("€") + content("b") + stop + done
	if got := normalChat(t, string(text)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestSessionNames checks the two places for a session's id, and that it is
// answered.
func TestSessionNames(t *testing.T) {
	g := &toy{lessons: chatLessons()}
	_, ts := newTestServer(t, g, 0)
	for _, c := range []struct {
		field, header string
		said          string
		status        int
		want          string // "": a new one
	}{
		{"", "", "plain", 200, ""},
		{"s-1", "", "plain", 200, "s-1"},
		{"", "s-2", "plain", 200, "s-2"},
		{"s-3", "s-3", "plain", 200, "s-3"},
		{"s-4", "s-5", "plain", 400, "-"},
		{"", "a b", "plain", 400, "-"},
		{"s", "", "busy", 409, "s"},
	} {
		req, err := http.NewRequest(http.MethodPost, ts.URL+chatPath, strings.NewReader(fmt.Sprintf(`{%s,"session":%q}`, said(c.said), c.field)))
		if err != nil {
			t.Fatal(err)
		}
		if c.header != "" {
			req.Header.Set(sessionHeader, c.header)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		got := resp.Header.Get(sessionHeader)
		if resp.StatusCode != c.status {
			t.Errorf("field %q, header %q: status %d, want %d", c.field, c.header, resp.StatusCode, c.status)
		}
		switch c.want {
		case "-":
			if got != "" {
				t.Errorf("field %q, header %q: a refused request has session %q", c.field, c.header, got)
			}
		case "":
			if want := string(g.requests[len(g.requests)-1].Session) + ".toy"; got != want {
				t.Errorf("new session %q, want the generator's id %q", got, want)
			}
		default:
			if got != c.want || string(g.requests[len(g.requests)-1].Session) != c.want {
				t.Errorf("field %q, header %q: session %q, the generator got %q", c.field, c.header, got, g.requests[len(g.requests)-1].Session)
			}
		}
	}
}

// TestCompleteChat checks chats over the control socket.
func TestCompleteChat(t *testing.T) {
	g := &toy{lessons: chatLessons()}
	var text string
	var last Chunk
	emit := func(c Chunk) error { text += c.Text; last = c; return nil }
	if err := CompleteChat(context.Background(), g, strings.NewReader(`{"messages":[{"role":"user","content":"plain"}]}`), emit); err != nil {
		t.Fatal(err)
	}
	if text != "ab" || last.FinishReason != "stop" {
		t.Errorf("text %q, last chunk %+v", text, last)
	}
}

// FuzzChatBody checks that whatever passes the checks is fit for the generator.
func FuzzChatBody(f *testing.F) {
	for _, seed := range []string{
		`{` + said("hi") + `}`, `{"model":"toy","messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"max_tokens":3,"logit_bias":{"1":2},"n":2,"logprobs":true,"top_logprobs":4}`,
		`{"model":"toy","messages":[null]}`, `{"model":"toy","messages":[{"role":"developer","content":""}],"min_tokens":2,"presence_penalty":1}`, `[]`, `{`,
	} {
		f.Add(seed)
	}
	models := (&toy{}).Models()
	f.Fuzz(func(t *testing.T, text string) {
		var b chatBody
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
			if len(g.Prompt) == 0 || g.MaxTokens < 1 || len(g.Prompt)+g.MaxTokens > c.model.Context || g.MinTokens > g.MaxTokens {
				t.Fatalf("accepted %q as %+v", text, g)
			}
			if err := g.Sampling.Check(); err != nil {
				t.Fatalf("accepted %q: %v", text, err)
			}
		}
	})
}
