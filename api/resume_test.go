package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"pgregory.net/rapid"
)

// sent is one event as a client reads it.
type sent struct{ id, data string }

func eventsOf(t interface{ Fatalf(string, ...any) }, stream string) []sent {
	var out []sent
	for _, block := range strings.Split(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
		if strings.HasPrefix(block, ":") {
			continue
		}
		id, rest, ok := strings.Cut(strings.TrimPrefix(block, "id: "), "\ndata: ")
		if !ok {
			t.Fatalf("an event without an id: %q", block)
		}
		out = append(out, sent{id, rest})
	}
	return out
}

// received is all that events tell a client, however they are cut.
type received struct {
	Head    string // id, object, created, model
	Choices map[int]receivedChoice
	Usage   []string
	Done    int
}

type receivedChoice struct {
	Text, Logprobs string
	Roles          int
	TokenIDs       []kevlard.Token
	Finish         []string
	After          bool // something came after the finish reason
}

func receive(t interface{ Fatalf(string, ...any) }, events []sent) received {
	r := received{Choices: map[int]receivedChoice{}}
	for _, e := range events {
		if e.data == "[DONE]" {
			r.Done++
			continue
		}
		var doc struct {
			ID, Object, Model string
			Created           int64
			Usage             json.RawMessage
			Error             json.RawMessage
			Choices           []struct {
				Index        int
				Text         string
				Delta        struct{ Role, Content string }
				Logprobs     json.RawMessage
				FinishReason *string         `json:"finish_reason"`
				TokenIDs     []kevlard.Token `json:"token_ids"`
			}
		}
		if err := json.Unmarshal([]byte(e.data), &doc); err != nil || doc.Error != nil {
			t.Fatalf("event %q: %v", e.data, err)
		}
		head := fmt.Sprint(doc.ID, doc.Object, doc.Model, doc.Created)
		if r.Head == "" {
			r.Head = head
		} else if r.Head != head {
			t.Fatalf("the head was %s and is %s", r.Head, head)
		}
		if len(doc.Usage) > 0 && string(doc.Usage) != "null" {
			r.Usage = append(r.Usage, string(doc.Usage))
		}
		for _, c := range doc.Choices {
			x := r.Choices[c.Index]
			x.After = x.After || len(x.Finish) > 0
			x.Text += c.Text + c.Delta.Content
			if c.Delta.Role != "" {
				x.Roles++
			}
			x.TokenIDs = append(x.TokenIDs, c.TokenIDs...)
			x.Logprobs += entriesOf(t, c.Logprobs)
			if c.FinishReason != nil {
				x.Finish = append(x.Finish, *c.FinishReason)
			}
			r.Choices[c.Index] = x
		}
	}
	return r
}

// entriesOf writes the entries of a logprobs object, in either shape, one after another.
func entriesOf(t interface{ Fatalf(string, ...any) }, raw json.RawMessage) string {
	var doc struct {
		Content       []json.RawMessage
		Tokens        []string
		TokenLogprobs []float32            `json:"token_logprobs"`
		TopLogprobs   []map[string]float32 `json:"top_logprobs"`
		TextOffset    []int                `json:"text_offset"`
	}
	if len(raw) == 0 {
		return ""
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatalf("logprobs %s: %v", raw, err)
	}
	var b strings.Builder
	for _, c := range doc.Content {
		b.Write(c)
	}
	for i := range doc.Tokens {
		fmt.Fprintf(&b, "%q %v %v %d;", doc.Tokens[i], doc.TokenLogprobs[i], doc.TopLogprobs[i], doc.TextOffset[i])
	}
	return b.String()
}

// TestResumeAnywhere (K73: characters, stop strings and tokens are cut at different places):
// whatever an answer is made of and after whichever event its
// stream is cut, what a client has then and what it gets when it resumes are together
// what it would have got.
func TestResumeAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := []string{"a", "b", "ab", "\n", " ", "€", "😀", "👩‍🚀", "\xf0\x9f\x98", "\xe2\x82", "\xff", "é"}
		answer := strings.Join(rapid.SliceOfN(rapid.SampledFrom(bits), 0, 12).Draw(t, "answer"), "")
		g := &toy{again: rapid.IntRange(1, 30).Draw(t, "again"), lessons: map[string]lesson{}}
		l := lesson{answer: answer, burst: rapid.IntRange(1, 4).Draw(t, "burst")}
		body := map[string]any{
			"model": "toy", "stream": true, "max_tokens": rapid.IntRange(1, 40).Draw(t, "max"), "n": rapid.IntRange(1, 3).Draw(t, "n"),
			"return_token_ids": rapid.Bool().Draw(t, "ids"),
		}
		if stops := rapid.SliceOfN(rapid.SampledFrom([]string{"ab", "b\n", "😀", "aab", "€é"}), 0, 2).Draw(t, "stops"); len(stops) > 0 {
			body["stop"] = stops
		}
		if rapid.Bool().Draw(t, "usage") {
			body["stream_options"] = map[string]any{"include_usage": true}
		}
		logprobs, path := rapid.Bool().Draw(t, "logprobs"), "/v1/completions"
		if rapid.Bool().Draw(t, "chat") {
			path = "/v1/chat/completions"
			body["messages"] = []map[string]any{{"role": "user", "content": "x"}}
			if logprobs {
				body["logprobs"], body["top_logprobs"] = true, 2
			}
			g.lessons["user:x\nassistant:"] = l
		} else {
			body["prompt"] = "x"
			if logprobs {
				body["logprobs"] = 2
			} else {
				body["echo"] = rapid.Bool().Draw(t, "echo")
			}
			g.lessons["x"] = l
		}
		if rapid.Bool().Draw(t, "named") && body["n"] == 1 {
			body["session"] = "mine"
		}
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		s, err := NewServer(Config{Listen: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)}, g, http.NotFoundHandler())
		if err != nil {
			t.Fatal(err)
		}
		defer s.listener.Close()
		ask := func(last string) []sent {
			r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(string(text)))
			if last != "" {
				r.Header.Set(lastEventHeader, last)
			}
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, r)
			if w.Code != http.StatusOK {
				t.Fatalf("after %q: %d %s", last, w.Code, w.Body)
			}
			return eventsOf(t, w.Body.String())
		}
		whole := ask("")
		want := receive(t, whole)
		at := rapid.IntRange(0, len(whole)-2).Draw(t, "cut")
		had := slices.Clone(whole[:at+1])
		for range rapid.IntRange(1, 3).Draw(t, "times") {
			rest := ask(had[len(had)-1].id)
			at := rapid.IntRange(0, len(rest)-1).Draw(t, "cut again")
			if at == len(rest)-1 {
				had = append(had, rest...)
				break
			}
			had = append(had, rest[:at+1]...)
		}
		if had[len(had)-1].data != "[DONE]" {
			had = append(had, ask(had[len(had)-1].id)...)
		}
		if got := receive(t, had); !reflect.DeepEqual(got, want) {
			t.Fatalf("cut after %q:\ngot  %+v\nwant %+v", whole[at].id, got, want)
		}
	})
}

// TestResumeErrors checks what a client that can't be let in is told.
func TestResumeErrors(t *testing.T) {
	lost := &kevlard.Failure{Code: "no_route", Status: 503, Message: "gone"}
	split := &kevlard.Failure{Code: "session_no_quorum", Status: 409, Message: "cut off"}
	g := &toy{lessons: map[string]lesson{
		"a": {answer: "abc", after: 2, fail: lost}, "busy": {answer: "abc", busy: true}, "split": {answer: "abc", after: 2, fail: split},
	}}
	_, ts := newTestServer(t, g, 0)
	ask := func(body, last string) (*http.Response, string) {
		r, err := http.NewRequest(http.MethodPost, ts.URL+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(lastEventHeader, last)
		return do(t, r)
	}
	const mine = `{"model":"toy","prompt":"a","stream":true}`
	_, text := ask(mine, "")
	events := eventsOf(t, text)
	last := events[len(events)-1]
	if !strings.Contains(last.data, `"resume":"`+last.id+`"`) || !strings.Contains(last.data, lastEventHeader+": "+last.id) {
		t.Errorf("the error event does not say how to go on: %+v", last)
	}
	_, text = ask(`{"model":"toy","prompt":"split","stream":true}`, "")
	events = eventsOf(t, text)
	if e := events[len(events)-1]; !strings.Contains(e.data, `"resume":"`+e.id+`"`) {
		t.Errorf("the event of too few witnesses does not say how to go on: %+v", e)
	}
	_, text = ask(`{"model":"toy","prompt":"busy","stream":true}`, "")
	busy := eventsOf(t, text)[0].id
	for _, c := range []struct {
		name, body, last string
		status           int
		says             string
	}{
		{"goes on", mine, last.id, 200, "[DONE]"},
		{"from the begin", mine, strings.Replace(last.id, "/b2.2", "/n0.0", 1), 200, "[DONE]"},
		{"unknown", mine, "1/01JD/b1.1", 404, `"code":"session_not_found"`},
		{"busy", `{"model":"toy","prompt":"busy","stream":true}`, busy, 409, `"code":"session_busy"`},
		{"another body", `{"model":"toy","prompt":"a","stream":true,"temperature":0}`, last.id, 400, "is of another request"},
		{"more answers", `{"model":"toy","prompt":"a","stream":true,"n":2}`, last.id, 400, "is of another request"},
		{"no stream", `{"model":"toy","prompt":"a"}`, last.id, 400, "stream must be true"},
		{"no id", mine, "17", 400, "no id of an event"},
		{"another version", mine, "2" + last.id[1:], 400, "no id of an event"},
		{"bytes that are not there", mine, strings.Replace(last.id, "/b2.2", "/b2.1", 1), 400, "does not fit the session"},
		{"tokens that are not there", mine, strings.Replace(last.id, "/b2.2", "/b9.9", 1), 400, "does not fit the session"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, text := ask(c.body, c.last)
			if resp.StatusCode != c.status || !strings.Contains(text, c.says) {
				t.Errorf("got %d %s, want %d with %q", resp.StatusCode, text, c.status, c.says)
			}
		})
	}
}

// TestResumeOfAnother: a session of another key is as unknown as one that never was.
func TestResumeOfAnother(t *testing.T) {
	g := &toy{lessons: map[string]lesson{"a": {answer: "abc"}}}
	keys, file := map[string]string{}, filepath.Join(t.TempDir(), "keys")
	lines := ""
	for _, name := range []string{"alice", "bob"} {
		key, line := newKey(t, name)
		keys[name] = key
		lines += line + "\n"
	}
	writeFile(t, file, lines)
	s, err := NewServer(Config{Listen: "127.0.0.1:0", KeysFile: file, Log: slog.New(slog.DiscardHandler)}, g, http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	defer s.listener.Close()
	ts := httptest.NewServer(s.Handler())
	defer ts.Close()
	ask := func(who, last string) (*http.Response, string) {
		r, err := http.NewRequest(http.MethodPost, ts.URL+"/v1/completions", strings.NewReader(`{"model":"toy","prompt":"a","stream":true,"session":"s"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+keys[who])
		r.Header.Set(lastEventHeader, last)
		return do(t, r)
	}
	_, text := ask("alice", "")
	first := eventsOf(t, text)[0].id
	if resp, text := ask("bob", first); resp.StatusCode != 404 || !strings.Contains(text, `"code":"session_not_found"`) {
		t.Errorf("bob gets %d %s", resp.StatusCode, text)
	}
	if resp, text := ask("alice", first); resp.StatusCode != 200 || !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Errorf("alice gets %d %s", resp.StatusCode, text)
	}
}

// do sends a request and returns the answer with its body.
func do(t *testing.T, r *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// TestAlive: a client that takes what it is sent is there, and one that has hung up is
// not.
func TestAlive(t *testing.T) {
	g := &toy{lessons: map[string]lesson{"a": {answer: "abc", after: 2, hang: true}}}
	s, err := NewServer(Config{Listen: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)}, g, http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	resp, err := http.Post("http://"+s.Addr()+"/v1/completions", "application/json", strings.NewReader(`{"model":"toy","prompt":"a","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	alive := g.requests[0].Alive
	g.mu.Unlock()
	if !alive() {
		t.Error("a client that is there is not alive")
	}
	resp.Body.Close()
	for end := time.Now().Add(deadline); alive(); {
		if time.Now().After(end) {
			t.Fatal("a client that has hung up is still alive")
		}
	}
}

// TestPulse: a client is gone when nothing is acknowledged for as long as its distance
// allows, and not because that takes longer than it does nearby.
func TestPulse(t *testing.T) {
	const ms = time.Millisecond
	type look struct {
		at      time.Duration
		waiting int
		acked   uint64
		says    string
	}
	for _, c := range []struct {
		name  string
		trip  time.Duration
		looks []look
	}{
		{"near, and there", ms, []look{{0, 17, 5, ""}, {20 * ms, 0, 22, "there"}}},
		{"near, and gone", ms, []look{{0, 17, 5, ""}, {580 * ms, 17, 5, ""}, {600 * ms, 17, 5, "gone"}}},
		{"far, and there", 900 * ms, []look{{0, 17, 5, ""}, {700 * ms, 17, 5, ""}, {2600 * ms, 17, 5, ""}, {2700 * ms, 0, 22, "there"}}},
		{"far, and gone", 900 * ms, []look{{0, 17, 5, ""}, {700 * ms, 17, 5, ""}, {2700 * ms, 17, 5, "gone"}}},
		{"so far that one must stop waiting", time.Minute, []look{{0, 17, 5, ""}, {9 * time.Second, 17, 5, ""}, {10 * time.Second, 17, 5, "gone"}}},
		{"a stream that never waits for all of it", 250 * ms, []look{{0, 900, 5, ""}, {700 * ms, 1200, 80, "there"}, {1400 * ms, 2000, 80, ""}, {1450 * ms, 2000, 80, "gone"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p pulse
			begin := time.Now()
			p.begin(begin, delivery{c.looks[0].waiting, c.looks[0].acked, c.trip})
			for _, l := range c.looks {
				says := ""
				there, gone := p.look(begin.Add(l.at), delivery{l.waiting, l.acked, c.trip})
				switch {
				case there:
					says = "there"
				case gone:
					says = "gone"
				}
				if says != l.says {
					t.Errorf("after %v: %q, want %q", l.at, says, l.says)
				}
			}
		})
	}
	// What was acknowledged before one asks again says nothing of now.
	var p pulse
	begin := time.Now()
	p.begin(begin, delivery{17, 5, ms})
	p.look(begin, delivery{17, 5, ms})
	p.begin(begin.Add(time.Hour), delivery{17, 22, ms})
	if there, gone := p.look(begin.Add(time.Hour), delivery{17, 22, ms}); there || gone {
		t.Errorf("there %v, gone %v", there, gone)
	}
}

// FuzzPlace: an id is read as it was written, or not at all.
func FuzzPlace(f *testing.F) {
	f.Add("1/01JD/b12.57,n0.0,t3.3,e9.1/u")
	f.Add("1/alice:s.01JD/n0.0")
	f.Add("1/x/b-1.0")
	f.Fuzz(func(t *testing.T, id string) {
		p, ok := parsePlace(id)
		if ok && p.String() != id {
			t.Errorf("%q is read as %+v, which is %q", id, p, p)
		}
		if ok && (len(p.choices) == 0 || len(p.choices) > maxChoices) {
			t.Errorf("%q has %d choices", id, len(p.choices))
		}
	})
}

// FuzzEnvelope: what is kept with sessions comes from other nodes.
func FuzzEnvelope(f *testing.F) {
	f.Add(sealed{sealedVersion, "alice", "00", "01JD", 5}.seal())
	f.Add([]byte(`{"v":2}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if s, ok := unseal(raw); ok {
			if again, ok := unseal(s.seal()); !ok || again != s {
				t.Errorf("%q is read as %+v and then as %+v", raw, s, again)
			}
		}
	})
}
