package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/internal/devmesh"
)

// told is what a client was told of one choice, as the JSON that it was sent: equal
// bits are equal digits.
type told struct {
	text     string
	reason   string
	tokens   []json.RawMessage // of a chat: each with its logprob, bytes and alternatives
	legacy   []string          // of a completion: token, logprob, alternatives and offset
	sessions []string
}

// logprobsEvent is one event of either kind of stream.
type logprobsEvent struct {
	Error   json.RawMessage
	Choices []struct {
		Index    int
		Text     string
		Delta    struct{ Content string }
		Finish   *string `json:"finish_reason"`
		Logprobs *struct {
			Content []json.RawMessage
			Tokens  []json.RawMessage
			Values  []json.RawMessage `json:"token_logprobs"`
			Top     []json.RawMessage `json:"top_logprobs"`
			Offsets []json.RawMessage `json:"text_offset"`
		}
	}
}

// logprobs streams a request and returns its choices. at is called with the number
// of entries that have come, after each event.
func (m *mesh) logprobs(t *testing.T, path, body string, at func(n int)) map[int]*told {
	t.Helper()
	resp, err := http.Post(m.Entry().APIURL()+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out := map[int]*told{}
	seen, done := 0, false
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if done = done || string(data) == "[DONE]"; !ok || done {
			continue
		}
		var ev logprobsEvent
		if err := json.Unmarshal(data, &ev); err != nil || ev.Error != nil {
			t.Fatalf("after %d tokens: event %s, %v", seen, data, err)
		}
		for _, c := range ev.Choices {
			if out[c.Index] == nil {
				out[c.Index] = &told{sessions: resp.Header.Values("X-Kevlard-Session")}
			}
			o := out[c.Index]
			o.text += c.Text + c.Delta.Content
			if c.Finish != nil {
				o.reason = *c.Finish
			}
			if l := c.Logprobs; l != nil {
				o.tokens = append(o.tokens, l.Content...)
				for i := range l.Tokens {
					o.legacy = append(o.legacy, fmt.Sprintf("%s %s %s %s", l.Tokens[i], l.Values[i], l.Top[i], l.Offsets[i]))
				}
				seen += len(l.Content) + len(l.Tokens)
			}
		}
		if at != nil {
			at(seen)
		}
	}
	if err := lines.Err(); err != nil || !done {
		t.Fatalf("the stream ended after %d tokens, [DONE] %v, %v", seen, done, err)
	}
	return out
}

// TestLogprobsSurvive kills the host of a stage in the middle of streams with log
// probabilities, and compares each of them with the unbroken run's: none is lost, none
// comes twice, and the standby's are the same bits.
func TestLogprobsSurvive(t *testing.T) {
	const tokens, killAt = 400, 60
	m := start(t, fourHosts())
	for _, c := range []struct {
		name, path, body string
		hop, choices     int
	}{
		{"chat, greedy, last stage", "/v1/chat/completions", `"messages":[{"role":"user","content":"Tell me of the fox."}],"temperature":0,"logprobs":true,"top_logprobs":20`, 1, 1},
		{"chat, sampled, two choices, first stage", "/v1/chat/completions", `"messages":[{"role":"user","content":"Tell me of the king."}],"temperature":0.8,"seed":5,"n":2,"logprobs":true,"top_logprobs":3`, 0, 2},
		{"completions, two prompts, last stage", "/v1/completions", `"prompt":["Once upon a time","The old king had"],"temperature":0.8,"seed":6,"logprobs":5`, 1, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := fmt.Sprintf(`{"model":%q,"stream":true,"ignore_eos":true,"max_tokens":%d,%s}`, m.ModelName(), tokens, c.body)
			want := m.logprobs(t, c.path, body, nil)
			var victim *devmesh.Node
			at := time.Now()
			got := m.logprobs(t, c.path, body, func(n int) {
				if n >= killAt && victim == nil {
					at, victim = time.Now(), m.running(t, c.hop)
					if err := victim.Kill(syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
				}
			})
			if len(want) != c.choices || len(got) != c.choices {
				t.Fatalf("%d choices, unbroken %d, want %d", len(got), len(want), c.choices)
			}
			for k, w := range want {
				g := got[k]
				if n := len(w.tokens) + len(w.legacy); n != tokens || w.reason != "length" {
					t.Fatalf("choice %d unbroken: %d tokens, finish %q, want %d and length", k, n, w.reason, tokens)
				}
				if g.text != w.text || g.reason != w.reason {
					t.Errorf("choice %d: %q (%s), unbroken %q (%s)", k, g.text, g.reason, w.text, w.reason)
				}
				for i := range w.tokens {
					if i >= len(g.tokens) || !bytes.Equal(g.tokens[i], w.tokens[i]) {
						t.Fatalf("choice %d: %d entries, the first that differs from the unbroken run's is %d", k, len(g.tokens), i)
					}
				}
				if len(g.tokens) != len(w.tokens) || !slices.Equal(g.legacy, w.legacy) {
					t.Errorf("choice %d: %d and %d entries, unbroken %d and %d", k, len(g.tokens), len(g.legacy), len(w.tokens), len(w.legacy))
				}
			}
			if n := m.recoveries(t, got[0].sessions, at); n == 0 {
				t.Error("no session failed over: nothing was shown")
			}
			m.restart(t, victim)
		})
	}
	// The same choice alone, without a stream, says the same.
	body := fmt.Sprintf(`{"model":%q,"ignore_eos":true,"max_tokens":40,"prompt":"Once upon a time","temperature":0.8,"seed":7,"logprobs":5`, m.ModelName())
	alone, second := m.document(t, body+`}`), m.document(t, strings.Replace(body, `"seed":7`, `"seed":6`, 1)+`,"n":2}`)
	if !reflect.DeepEqual(alone[0], second[1]) {
		t.Errorf("seed 7 alone: %s, as the second choice of seed 6: %s", alone[0], second[1])
	}
}

// document returns text and logprobs of the choices of a completion that is not
// streamed.
func (m *mesh) document(t *testing.T, body string) []string {
	t.Helper()
	resp, err := http.Post(m.Entry().APIURL()+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var doc struct {
		Choices []struct {
			Text     string
			Logprobs json.RawMessage
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v", resp.StatusCode, err)
	}
	var out []string
	for _, c := range doc.Choices {
		out = append(out, c.Text+" "+string(c.Logprobs))
	}
	return out
}

// running returns the host at a hop of a session that is under way.
func (m *mesh) running(t *testing.T, hop int) *devmesh.Node {
	t.Helper()
	sessions, err := m.Entry().Sessions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(sessions, func(s report.Session) bool { return s.State == "decode" && len(s.Route) > hop })
	if i < 0 {
		t.Fatalf("no session is under way: %+v", sessions)
	}
	for _, n := range m.All() {
		if n.Name() == sessions[i].Route[hop] {
			return n
		}
	}
	t.Fatalf("no node is called %s", sessions[i].Route[hop])
	return nil
}
