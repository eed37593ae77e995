package e2e

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard/internal/devmesh"
)

// envelope is OpenAI's error.
type envelope struct {
	Error struct {
		Message string
		Type    string
		Param   *string
		Code    *string
	}
}

// descriptors counts the open files of a process.
func descriptors(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestBadRequests sends what no server should get to a mesh at work: each gets one
// error that names what is wrong, no process dies, nothing is left open, and the
// streams that run meanwhile are as if nothing had happened.
func TestBadRequests(t *testing.T) {
	m := start(t, devmesh.Options{Nodes: 2, Stages: 2, Gateways: 1})
	m.unbroken(t, storyRequests(m, 2, 20))
	pids := m.pids()
	entry := m.Entry()
	http.DefaultClient.CloseIdleConnections()
	m.client.CloseIdle()
	calm := descriptors(t, entry.PID())

	traffic := m.background(t, 2, 200)
	model := m.ModelName()
	good := func(rest string) string { return fmt.Sprintf(`{"model":%q,"prompt":"a"%s}`, model, rest) }
	huge := strings.Repeat("a ", 3<<20)
	for _, c := range []struct {
		name, method, path, body string
		header                   http.Header
		status                   int
		param                    string // "": null
		want                     string // in the message
	}{
		{"nothing", "POST", "/v1/completions", "", nil, 400, "", "the body is empty"},
		{"bad JSON", "POST", "/v1/completions", `{"model": "fairy", "prompt": `, nil, 400, "", "not valid JSON"},
		{"binary", "POST", "/v1/completions", "\x00\xff\xfe\x01", nil, 400, "", "not valid JSON"},
		{"deep JSON", "POST", "/v1/completions", strings.Repeat("[", 100_000), nil, 400, "", "JSON"},
		{"no object", "POST", "/v1/chat/completions", `"hello"`, nil, 400, "", "must be a JSON object"},
		{"unknown model", "POST", "/v1/completions", `{"model":"gpt-5","prompt":"a"}`, nil, 404, "model", `"gpt-5" does not exist (available: ` + model},
		{"no prompt", "POST", "/v1/completions", fmt.Sprintf(`{"model":%q}`, model), nil, 400, "prompt", "prompt is missing"},
		{"over-long prompt", "POST", "/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":%q}`, model, huge[:60_000]), nil, 400, "prompt", "the model's context is"},
		{"over-long chat", "POST", "/v1/chat/completions", fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}]}`, model, huge[:60_000]), nil, 400, "messages", "the model's context is"},
		{"over-long answer", "POST", "/v1/completions", good(`,"max_tokens":1000000`), nil, 400, "prompt", "the model's context is"},
		{"huge body", "POST", "/v1/completions", good(`,"x":"` + huge + `"`), nil, 413, "", "larger than 4194304 bytes"},
		{"huge chat", "POST", "/v1/chat/completions", good(`,"x":"` + huge + `"`), nil, 413, "", "larger than 4194304 bytes"},
		{"temperature", "POST", "/v1/completions", good(`,"temperature":-0.1`), nil, 400, "temperature", "-0.1: want 0 to 2"},
		{"temperature, huge", "POST", "/v1/completions", good(`,"temperature":1e400`), nil, 400, "temperature", "temperature"},
		{"top_p", "POST", "/v1/completions", good(`,"top_p":1.5`), nil, 400, "top_p", "1.5: want"},
		{"min_p", "POST", "/v1/completions", good(`,"min_p":-1`), nil, 400, "min_p", "-1: want"},
		{"seed", "POST", "/v1/completions", good(`,"seed":1.5`), nil, 400, "seed", "whole number"},
		{"max_tokens", "POST", "/v1/completions", good(`,"max_tokens":-5`), nil, 400, "max_tokens", "-5: want at least 1"},
		{"penalty", "POST", "/v1/completions", good(`,"presence_penalty":9`), nil, 400, "presence_penalty", "9: want -2 to 2"},
		{"token id", "POST", "/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":[99999999]}`, model), nil, 400, "prompt", "99999999"},
		{"session name", "POST", "/v1/completions", good(`,"session":"../../etc/passwd"`), nil, 400, "session", "letters, digits"},
		{"method", "GET", "/v1/completions", "", nil, 405, "", "POST"},
		{"path", "POST", "/v1/complete", "{}", nil, 404, "", "/v1/complete"},
		{"path tricks", "GET", "/v1/models/../../metrics/../secret", "", nil, 404, "", "secret"},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), c.method, entry.APIURL()+c.path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
			if err != nil {
				t.Fatal(err)
			}
			var e envelope
			if err := json.Unmarshal(text, &e); err != nil {
				t.Fatalf("%d, no envelope (%v): %.300s", resp.StatusCode, err, text)
			}
			param := ""
			if e.Error.Param != nil {
				param = *e.Error.Param
			}
			if resp.StatusCode != c.status || param != c.param || !strings.Contains(e.Error.Message, c.want) || len(text) > 2000 {
				t.Errorf("got %d, param %q, %.300s\nwant %d, param %q, %q in the message", resp.StatusCode, param, text, c.status, c.param, c.want)
			}
		})
	}
	for _, n := range m.All() {
		garbage(t, n)
	}
	header := fmt.Sprintf("GET /v1/models HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", strings.Repeat("y", 1<<20))
	if answer := raw(t, entry.APIURL()[len("http://"):], []byte(header), readyWithin); !strings.HasPrefix(answer, "HTTP/1.1 431 ") {
		t.Errorf("a header of a megabyte is answered %.60q, want 431", answer)
	}

	traffic.stop(t)
	for name, pid := range m.pids() {
		if pids[name] != pid {
			t.Errorf("%s was pid %d and is %d", name, pids[name], pid)
		}
	}
	eventually(t, 30*time.Second, func() error { return m.idle(t.Context()) })
	http.DefaultClient.CloseIdleConnections()
	m.client.CloseIdle()
	eventually(t, 30*time.Second, func() error {
		if now := descriptors(t, entry.PID()); now > calm {
			return fmt.Errorf("the gateway had %d files open and has %d", calm, now)
		}
		return nil
	})
}

// garbage sends what is no protocol at all to every port of a node.
func garbage(t *testing.T, n *devmesh.Node) {
	t.Helper()
	noise := make([]byte, 4096)
	rand.Read(noise)
	host, port, err := net.SplitHostPort(strings.TrimPrefix(n.APIURL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	var base int
	if _, err := fmt.Sscan(port, &base); err != nil {
		t.Fatal(err)
	}
	for offset, network := range map[int]string{0: "tcp", 1: "udp", 2: "tcp"} {
		for _, b := range [][]byte{noise, bytes.Repeat([]byte{0xff}, 64), []byte("GET / HTTP/1.1\r\n\r\n")} {
			addr := net.JoinHostPort(host, fmt.Sprint(base+offset))
			if network == "tcp" {
				raw(t, addr, b, silence)
			} else {
				c, err := net.Dial(network, addr)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.Write(b[:min(len(b), 1200)]); err != nil {
					t.Error(err)
				}
				c.Close()
			}
		}
	}
	raw(t, net.JoinHostPort(host, fmt.Sprint(base+1)), noise, silence) // gossip's TCP
}

// silence is how long an answer is waited for where none needs to come.
const silence = 500 * time.Millisecond

// raw sends bytes over TCP and returns the beginning of what comes back in that time, if
// anything.
func raw(t *testing.T, addr string, b []byte, within time.Duration) string {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatalf("%s does not listen any more: %v", addr, err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = c.Write(b) // the node may close before it has read all
	}()
	line, _ := bufio.NewReader(c).ReadString('\n') // or a reset, or silence
	c.Close()
	<-sent
	return line
}
