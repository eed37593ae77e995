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

// deadline is how long a test waits for something that must happen.
const deadline = 10 * time.Second

var varying = regexp.MustCompile(`"id":"(cmpl-[0-9A-Z]{26})","object":"text_completion","created":(\d+)`)

// normal replaces id and time, which must be the same in all chunks.
func normal(t *testing.T, text string) string {
	t.Helper()
	text = resumption.ReplaceAllString(text, "")
	for _, m := range varying.FindAllStringSubmatch(text, -1) {
		if first := varying.FindStringSubmatch(text); m[1] != first[1] || m[2] != first[2] {
			t.Errorf("chunks differ in id or created: %v and %v", m, first)
		}
	}
	return varying.ReplaceAllString(text, `ID`)
}

// chunk is the expected line of one chunk.
func chunk(text, reason string) string {
	if reason != "null" {
		reason = `"` + reason + `"`
	}
	return fmt.Sprintf(`data: {ID,"model":"toy","choices":[{"index":0,"text":%q,"logprobs":null,"finish_reason":%s}]}`, text, reason) + "\n\n"
}

const done = "data: [DONE]\n\n"

// TestTranscripts compares whole streams, byte by byte.
func TestTranscripts(t *testing.T) {
	lost := &kevlard.Failure{Code: "no_route", Status: 503, Message: "nobody serves layers [2,4)"}
	g := &toy{lessons: map[string]lesson{
		"plain":  {answer: "ab"},
		"stop":   {answer: "one\n\ntwo"},
		"almost": {answer: "x\ny"},
		"burst":  {answer: "one\n\ntwo", burst: 8},
		"utf8":   {answer: "a€b"},
		"half":   {answer: "a\xe2\x82"},
		"lost":   {answer: "abc", after: 2, fail: lost},
		"never":  {answer: "abc", refuse: lost},
		"early":  {answer: "abc", after: 0, fail: lost},
	}}
	_, ts := newTestServer(t, g, 0)
	for _, c := range []struct {
		name, body string
		status     int
		want       string
	}{
		{"plain", `"prompt":"plain"`, 200, chunk("a", "null") + chunk("b", "stop") + done},
		{"length", `"prompt":"plain","max_tokens":1`, 200, chunk("a", "length") + done},
		{"echo", `"prompt":"plain","echo":true`, 200, chunk("plaina", "null") + chunk("b", "stop") + done},
		{"stop over tokens", `"prompt":"stop","stop":"\n\n"`, 200, chunk("o", "null") + chunk("n", "null") + chunk("e", "null") + chunk("", "stop") + done},
		{"stop in one update", `"prompt":"burst","stop":["\n\n"]`, 200, chunk("one", "stop") + done},
		{"stop that is none", `"prompt":"almost","stop":["\n\n"]`, 200, chunk("x", "null") + chunk("\ny", "stop") + done},
		{"character over tokens", `"prompt":"utf8"`, 200, chunk("a", "null") + chunk("€", "null") + chunk("b", "stop") + done},
		{"half a character", `"prompt":"half"`, 200, chunk("a", "null") + chunk("\uFFFD", "stop") + done},
		{
			"usage", `"prompt":"plain","max_tokens":1,"stream_options":{"include_usage":true}`, 200,
			strings.Replace(chunk("a", "length"), "]}\n", "],\"usage\":null}\n", 1) +
				`data: {ID,"model":"toy","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6,"prompt_tokens_details":{"cached_tokens":0}}}` + "\n\n" + done,
		},
		{
			"token ids", `"prompt":"half","return_token_ids":true`, 200,
			strings.Replace(chunk("a", "null"), "null}]", `null,"token_ids":[97]}]`, 1) +
				strings.Replace(chunk("", "null"), "null}]", `null,"token_ids":[226]}]`, 1) +
				strings.Replace(chunk("\uFFFD", "stop"), `"stop"}]`, `"stop","token_ids":[130]}]`, 1) + done,
		},
		{"lost in the middle", `"prompt":"lost"`, 200, chunk("a", "null") + chunk("b", "null") +
			`data: {"error":{"message":"nobody serves layers [2,4)","type":"server_error","param":null,"code":"no_route"}}` + "\n\n"},
		{"refused", `"prompt":"never"`, 503, `{"error":{"message":"nobody serves layers [2,4)","type":"server_error","param":null,"code":"no_route"}}` + "\n"},
		{"lost before the first token", `"prompt":"early","echo":true`, 503, `{"error":{"message":"nobody serves layers [2,4)","type":"server_error","param":null,"code":"no_route"}}` + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, text := post(t, ts, `{"model":"toy","stream":true,`+c.body+`}`)
			if got := normal(t, text); got != c.want || resp.StatusCode != c.status {
				t.Errorf("got %d\n%s\nwant %d\n%s", resp.StatusCode, got, c.status, c.want)
			}
			if ct := resp.Header.Get("Content-Type"); c.status == 200 && ct != "text/event-stream" {
				t.Errorf("content type %q", ct)
			}
			if retry := resp.Header.Get("Retry-After"); (retry != "") != (c.status == 503) {
				t.Errorf("Retry-After %q with %d", retry, c.status)
			}
		})
	}
}

// TestCollected checks answers that are one document.
func TestCollected(t *testing.T) {
	g := &toy{lessons: map[string]lesson{
		"plain": {answer: "a€", burst: 2},
		"stop":  {answer: "one\n\ntwo"},
		"lost":  {answer: "abc", after: 2, fail: &kevlard.Failure{Code: "poisoned", Status: 500, Message: "the request crashes engines"}},
	}}
	_, ts := newTestServer(t, g, 0)
	for _, c := range []struct {
		name, body string
		status     int
		want       string
	}{
		{"plain", `"prompt":"plain"`, 200, `{ID,"model":"toy","choices":[{"index":0,"text":"a€","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":4,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":0}}}`},
		{"echo ids", `"prompt":[104,105],"echo":true,"return_token_ids":true`, 200, `{ID,"model":"toy","choices":[{"index":0,"text":"hi","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":0,"total_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}`},
		{"stop", `"prompt":"stop","stop":"\n\n"`, 200, `{ID,"model":"toy","choices":[{"index":0,"text":"one","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":4,"completion_tokens":5,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":0}}}`},
		{"half an answer is none", `"prompt":"lost"`, 500, `{"error":{"message":"the request crashes engines","type":"server_error","param":null,"code":"poisoned"}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, text := post(t, ts, `{"model":"toy",`+c.body+`}`)
			if got := normal(t, text); got != c.want+"\n" || resp.StatusCode != c.status {
				t.Errorf("got %d\n%s\nwant %d\n%s", resp.StatusCode, got, c.status, c.want)
			}
		})
	}
}

// TestBytewise reads a stream from a raw socket one byte at a time.
func TestBytewise(t *testing.T) {
	_, ts := newTestServer(t, &toy{lessons: map[string]lesson{"p": {answer: "€uro"}}}, 0)
	conn, err := net.Dial("tcp", ts.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(deadline)); err != nil {
		t.Fatal(err)
	}
	body := `{"model":"toy","prompt":"p","stream":true}`
	for _, b := range []byte(fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)) {
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
	want := chunk("€", "null") + chunk("u", "null") + chunk("r", "null") + chunk("o", "stop") + done
	if got := normal(t, string(text)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestDisconnect checks that a client that goes away ends its session, in each way
// to answer.
func TestDisconnect(t *testing.T) {
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream=%v", stream), func(t *testing.T) {
			g := &toy{lessons: map[string]lesson{"p": {answer: "abc", after: 1, hang: true}}, cancelled: make(chan kevlard.SessionID, 1)}
			_, ts := newTestServer(t, g, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			body := fmt.Sprintf(`{"model":"toy","prompt":"p","session":"gone","stream":%v}`, stream)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, ts.URL+"/v1/completions", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			result := make(chan error, 1)
			go func() {
				resp, err := http.DefaultClient.Do(req)
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				result <- err
			}()
			waitFor(t, func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.requests) == 1 })
			cancel()
			select {
			case id := <-g.cancelled:
				if id != "gone" {
					t.Errorf("session %q was closed", id)
				}
			case <-time.After(deadline):
				t.Fatal("the session was not closed")
			}
			if err := <-result; err == nil {
				t.Error("the client did not notice that it cancelled")
			}
			// Its place is free again: a limit of one lets the next request in.
			waitFor(t, func() bool { resp, _ := post(t, ts, `{"model":"toy","prompt":"q"}`); return resp.StatusCode == 200 })
		})
	}
}

// waitFor polls a condition that something else makes true.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(deadline); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("it never came true")
		}
	}
}

// TestTooMany checks that requests over the limit are told to come again.
func TestTooMany(t *testing.T) {
	g := &toy{lessons: map[string]lesson{"p": {answer: "abc", after: 1, hang: true}}}
	s, ts := newTestServer(t, g, 1)
	var shed []string
	s.cfg.Shed = func(reason string) { shed = append(shed, reason) }
	resp, err := http.Post(ts.URL+"/v1/completions", "", strings.NewReader(`{"model":"toy","prompt":"p","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	second, text := post(t, ts, `{"model":"toy","prompt":"q"}`)
	want := `{"error":{"message":"1 requests are running on this node, which is its limit: try again","type":"rate_limit_error","param":null,"code":"overloaded"}}`
	if second.StatusCode != 429 || strings.TrimSpace(text) != want || second.Header.Get("Retry-After") != "1" {
		t.Errorf("got %d %s, Retry-After %q", second.StatusCode, text, second.Header.Get("Retry-After"))
	}
	if len(shed) != 1 || shed[0] != "overloaded" {
		t.Errorf("shed %q, want it counted once as overloaded", shed)
	}
}

// TestOtherRoutes checks the small ones, and that every error is an envelope.
func TestOtherRoutes(t *testing.T) {
	g := &toy{}
	_, ts := newTestServer(t, g, 0)
	for _, c := range []struct {
		method, path, ready string
		status              int
		want                string
	}{
		{"GET", "/v1/models", "", 200, `{"data":[{"id":"toy","object":"model","created":1000,"owned_by":"kevlard","max_model_len":100,"digest":"` + kevlard.Digest{1}.String() + `"},{"id":"bare","object":"model","created":0,"owned_by":"kevlard","max_model_len":100,"digest":"` + kevlard.Digest{2}.String() + `"}],"object":"list"}`},
		{"GET", "/v1/models/toy", "", 200, `{"id":"toy","object":"model","created":1000,"owned_by":"kevlard","max_model_len":100,"digest":"` + kevlard.Digest{1}.String() + `"}`},
		{"GET", "/v1/models/x", "", 404, `{"error":{"message":"the model \"x\" does not exist (available: toy, bare)","type":"invalid_request_error","param":"model","code":"model_not_found"}}`},
		{"GET", "/healthz", "no", 200, `{"status":"ok"}`},
		{"GET", "/readyz", "", 200, `{"ready":true}`},
		{"GET", "/readyz", "no route", 503, `{"ready":false,"reason":"no route"}`},
		{"GET", "/v1/completions", "", 405, `{"error":{"message":"GET /v1/completions: want POST","type":"invalid_request_error","param":null,"code":"method_not_allowed"}}`},
		{"POST", "/v1/models", "", 405, `{"error":{"message":"POST /v1/models: want GET","type":"invalid_request_error","param":null,"code":"method_not_allowed"}}`},
		{"POST", "/v1/embeddings", "", 404, `{"error":{"message":"there is no /v1/embeddings here","type":"invalid_request_error","param":null,"code":"not_found"}}`},
	} {
		t.Run(c.method+c.path+c.ready, func(t *testing.T) {
			g.ready = c.ready
			req, err := http.NewRequest(c.method, ts.URL+c.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(string(text)); got != c.want || resp.StatusCode != c.status {
				t.Errorf("got %d %s\nwant %d %s", resp.StatusCode, got, c.status, c.want)
			}
		})
	}
}

// TestListenLoopbackOnly checks that nothing listens where others could reach it.
func TestListenLoopbackOnly(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", ":0", "192.0.2.1:0", "[::]:0", "example.org:0", "nonsense"} {
		if s, err := NewServer(Config{Listen: addr}, &toy{}, http.NotFoundHandler()); err == nil {
			s.listener.Close()
			t.Errorf("listens on %s", addr)
		}
	}
}
