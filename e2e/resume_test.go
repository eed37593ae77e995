package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kevlard/kevlard/client"
	"github.com/kevlard/kevlard/internal/devmesh"
)

// answer is what a client has of one streamed answer.
type answer struct {
	head    string // id and time, which all events share
	choices [4]struct{ text, logprobs, finish string }
	usage   string
}

// add takes one event.
func (a *answer) add(data json.RawMessage) error {
	var ev struct {
		ID      string
		Created int64
		Usage   json.RawMessage
		Choices []struct {
			Index        int
			Text         string
			Delta        struct{ Role, Content string }
			FinishReason *string `json:"finish_reason"`
			Logprobs     json.RawMessage
		}
	}
	if err := json.Unmarshal(data, &ev); err != nil {
		return err
	}
	head := fmt.Sprint(ev.ID, ev.Created)
	if a.head == "" {
		a.head = head
	}
	if head != a.head {
		return fmt.Errorf("an event of %s in the answer %s", head, a.head)
	}
	if u := string(ev.Usage); u != "" && u != "null" {
		a.usage += u
	}
	for _, c := range ev.Choices {
		x := &a.choices[c.Index]
		if c.Delta.Role != "" {
			x.text += "<" + c.Delta.Role + ">"
		}
		x.text += c.Text + c.Delta.Content
		if s := string(c.Logprobs); s != "null" {
			var l struct {
				Content []struct {
					Token   string
					Logprob float64
				}
			}
			if err := json.Unmarshal(c.Logprobs, &l); err != nil {
				return err
			}
			for _, e := range l.Content {
				x.logprobs += fmt.Sprintf("%q %v ", e.Token, e.Logprob)
			}
		}
		if c.FinishReason != nil {
			x.finish += *c.FinishReason
		}
	}
	return nil
}

// same compares all but the head, which is each answer's own, and what was cached.
func (a answer) same(b answer) bool {
	return a.choices == b.choices && (a.usage == b.usage || sameCounts(a.usage, b.usage))
}

// fragile is a transport whose answers break after so many bytes, as often as it is
// told.
type fragile struct {
	http.RoundTripper
	bytes  int64
	breaks atomic.Int32
}

func (f *fragile) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := f.RoundTripper.RoundTrip(r)
	if err != nil || f.breaks.Add(-1) < 0 {
		return resp, err
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, f.bytes), resp.Body}
	return resp, nil
}

// resumable are the requests that tests of resuming make: greedy and not, with a stop
// string, with several answers, and with characters that are cut between tokens.
func resumable(m *mesh) []map[string]any {
	usage := map[string]any{"include_usage": true}
	// The bundled model spells what it has no token for byte by byte. These are the tokens
	// of F0 9F 98 80, which are 😀 in this order, and else half characters. The greatest
	// bias leaves no others.
	emoji := map[string]int{"172": 100, "253": 100, "246": 100, "222": 100}
	return []map[string]any{
		{"model": m.ModelName(), "prompt": "Once upon a time there was", "max_tokens": 120, "temperature": 0, "stop": []string{" who was very"}},
		{"model": m.ModelName(), "prompt": "The old king had", "max_tokens": 120, "temperature": 0.8, "seed": 7, "stream_options": usage},
		{"model": m.ModelName(), "prompt": "The fox said to the cat", "max_tokens": 60, "temperature": 0.8, "seed": 3, "n": 3, "stream_options": usage},
		{"model": m.ModelName(), "prompt": "Smile:", "max_tokens": 60, "temperature": 2, "seed": 5, "logit_bias": emoji, "ignore_eos": true},
	}
}

// TestResumeElsewhere breaks the connections of clients at some byte, again and again.
// They go on in turn at two gateways, of which one owns the session, and miss nothing.
func TestResumeElsewhere(t *testing.T) {
	m := start(t, devmesh.Options{Nodes: 2, Stages: 2, Gateways: 2})
	for i, body := range resumable(m) {
		body["stream"] = true
		var want answer
		if err := client.New(m.Gateway(1).APIURL()).Stream(t.Context(), "/v1/completions", body, want.add); err != nil {
			t.Fatal(err)
		}
		c := client.New(m.Gateway(1).APIURL(), m.Gateway(2).APIURL())
		broken := &fragile{RoundTripper: http.DefaultTransport, bytes: int64(3000 + 777*i)}
		const breaks = 4
		broken.breaks.Store(breaks)
		c.HTTP = &http.Client{Transport: broken}
		var got answer
		if err := c.Stream(t.Context(), "/v1/completions", body, got.add); err != nil {
			t.Fatal(err)
		}
		if body["logit_bias"] != nil && !strings.ContainsFunc(want.choices[0].text, func(r rune) bool { return r > 127 }) {
			t.Errorf("no character is cut in %q", want.choices[0].text)
		}
		if !got.same(want) {
			t.Errorf("request %d: got\n%+v\nwant\n%+v", i, got, want)
		}
		if left := broken.breaks.Load(); left >= breaks-1 {
			t.Errorf("request %d: the stream broke %d times: it proves nothing", i, breaks-left)
		}
	}
}

// posted opens a stream; last is its Last-Event-ID, if there is one.
func posted(t *testing.T, n *devmesh.Node, body map[string]any, last string) *http.Response {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.APIURL()+"/v1/completions", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// TestNextTurnAfterCancel: a client cancels and sends the next turn of the conversation
// at once, with what it was shown. The answer is that to a conversation which never had
// more, and the cancelled answer does not stand in its way.
func TestNextTurnAfterCancel(t *testing.T) {
	m := start(t, devmesh.Options{Nodes: 1, Stages: 1, Gateways: 1})
	const prompt = "Once upon a time there was"
	body := map[string]any{"model": m.ModelName(), "prompt": prompt, "max_tokens": 400, "temperature": 0, "ignore_eos": true, "stream": true, "session": "turns"}
	resp := posted(t, m.Gateway(1), body, "")
	shown, events := "", readEvents(resp.Body)
	for range 5 {
		ev := <-events
		var a answer
		if err := a.add(json.RawMessage(ev.data)); err != nil {
			t.Fatalf("%+v: %v", ev, err)
		}
		shown += a.choices[0].text
	}
	resp.Body.Close()
	time.Sleep(50 * time.Millisecond) // the client's own pause
	body["prompt"], body["max_tokens"] = prompt+shown+" and then", 20
	body["stream_options"] = map[string]any{"include_usage": true}
	var got, want answer
	if err := client.New(m.Gateway(1).APIURL()).Stream(t.Context(), "/v1/completions", body, got.add); err != nil {
		t.Fatal(err)
	}
	delete(body, "session")
	if err := client.New(m.Gateway(1).APIURL()).Stream(t.Context(), "/v1/completions", body, want.add); err != nil {
		t.Fatal(err)
	}
	if !got.same(want) {
		t.Errorf("after a cancel: got\n%+v\nwant\n%+v", got, want)
	}
}

// sameCounts compares the tokens of two usages, whatever was cached.
func sameCounts(a, b string) bool {
	var x, y struct {
		P int `json:"prompt_tokens"`
		C int `json:"completion_tokens"`
	}
	return json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && x == y
}

// line is one event as it is on the wire.
type line struct{ id, data string }

// readEvents reads events until the stream ends.
func readEvents(r io.Reader) <-chan line {
	out := make(chan line, 1024)
	go func() {
		defer close(out)
		text := ""
		b := make([]byte, 4096)
		for {
			n, err := r.Read(b)
			text += string(b[:n])
			for {
				block, rest, ok := strings.Cut(text, "\n\n")
				if !ok {
					break
				}
				text = rest
				if id, data, ok := strings.Cut(strings.TrimPrefix(block, "id: "), "\ndata: "); ok {
					out <- line{id, data}
				}
			}
			if err != nil {
				return
			}
		}
	}()
	return out
}

// TestDrainNamesTheResumeID: a gateway that leaves while a stream runs ends it with an
// error that says how to go on.
func TestDrainNamesTheResumeID(t *testing.T) {
	m := start(t, devmesh.Options{Nodes: 2, Stages: 2, Gateways: 2})
	body := map[string]any{"model": m.ModelName(), "prompt": "The soldier", "max_tokens": 900, "temperature": 0, "ignore_eos": true, "stream": true}
	resp := posted(t, m.Gateway(1), body, "")
	defer resp.Body.Close()
	events := readEvents(resp.Body)
	if ev, ok := <-events; !ok {
		t.Fatalf("no event: %+v", ev)
	}
	left := make(chan int, 1)
	go func() {
		_, _, code := kevlard(t, "--control", m.Gateway(1).Control(), "leave", "--timeout", "200ms")
		left <- code
	}()
	var last, before line
	for ev := range events {
		last, before = ev, last
	}
	if code := <-left; code == 0 {
		t.Error("leave says that no session was lost")
	}
	var e struct {
		Error struct{ Code, Message, Resume string }
	}
	if err := json.Unmarshal([]byte(last.data), &e); err != nil || e.Error.Resume == "" || e.Error.Resume != before.id || e.Error.Resume != last.id || !strings.Contains(e.Error.Message, e.Error.Resume) {
		t.Errorf("the last event is %+v after %+v (%v)", last, before, err)
	}
}
