package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/internal/loopback"
)

// startAgent runs an agent in this process until the test ends and returns its
// control socket and API address. It checks that the agent exits 0 when told to end.
func startAgent(t *testing.T, args ...string) (socket, apiAddr string) {
	t.Helper()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if r := program(t, nil, "", "keygen", "--out", secret); r.code != 0 {
		t.Fatal(r.stderr)
	}
	socket = filepath.Join(dir, "k.sock")
	listen, apiAddr := listenFlags(t)
	args = append([]string{
		"agent", "--dev", "--name", "n1", "--data-dir", dir, "--ring-secret-file", secret, "--control", socket, "--engine-threads", "1",
	}, append(listen, args...)...)
	ctx, cancel := context.WithCancelCause(context.Background())
	logs, w := io.Pipe()
	logged := make(chan string)
	go func() {
		text, _ := io.ReadAll(logs) // a pipe that the writer closes gives no error
		logged <- string(text)
	}()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, args, nil, nil, io.Discard, w)
		w.Close()
	}()
	t.Cleanup(func() {
		cancel(errInterrupted)
		text := <-logged
		if code := <-ended; code != 0 {
			t.Errorf("the agent exits %d", code)
		}
		if t.Failed() {
			t.Log(text)
		}
	})
	eventually(t, func() bool {
		select {
		case code := <-ended:
			t.Fatalf("the agent ended with exit code %d", code)
		default:
		}
		return program(t, nil, "", "status", "--control", socket).code == 0
	})
	return socket, apiAddr
}

// listenFlags returns the flags for an agent that listens on loopback, and the address
// of its API: they are this test's, and each name's of it.
func listenFlags(t *testing.T, name ...string) (flags []string, apiAddr string) {
	ip := loopback.IP(t, name...)
	return []string{"--ring-bind", ip + ":7946", "--mesh-bind", ip + ":7947", "--mesh-bulk-port", "7948", "--api-listen", ip + ":8080"}, ip + ":8080"
}

// eventually polls for something that another process makes true.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("it never came true")
		}
	}
}

// TestAgentHost runs a host with two engines and compares its answers with those of
// this process alone.
func TestAgentHost(t *testing.T) {
	if !builtWithEngine {
		t.Skip("this build has no engine (CGO_ENABLED=0)")
	}
	file := fairyFile(t)
	socket, addr := startAgent(t, "--models-assign", file+":0-3,"+file+":3-8")
	eventually(t, func() bool { return program(t, nil, "", "status", "--check", "--control", socket).code == 0 })
	flags := []string{"generate", "-o", "json", "-n", "24", "--temperature", "0.8", "--seed", "7", "Once upon a time"}
	var meshed, alone generation
	for args, into := range map[*generation][]string{&meshed: {"--control", socket}, &alone: {"--local", file, "--threads", "1"}} {
		r := program(t, nil, "", append(flags, into...)...)
		if err := json.Unmarshal([]byte(r.stdout), args); err != nil || r.code != 0 {
			t.Fatalf("exit %d, %v: %s", r.code, err, r.stderr)
		}
	}
	if !slices.Equal(meshed.TokenIDs, alone.TokenIDs) || meshed.Text != alone.Text || len(alone.TokenIDs) != 24 || meshed.FinishReason != "length" {
		t.Errorf("the daemon gave %+v\nthis process %+v", meshed, alone)
	}

	body := `{"model":"fairy","prompt":"Once upon a time","max_tokens":24,"temperature":0.8,"seed":7,"return_token_ids":true}`
	resp, err := http.Post("http://"+addr+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Choices []struct {
			Text     string          `json:"text"`
			TokenIDs []kevlard.Token `json:"token_ids"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || len(answer.Choices) != 1 {
		t.Fatalf("%v, %+v", err, answer)
	}
	if c := answer.Choices[0]; c.Text != alone.Text || !slices.Equal(c.TokenIDs, alone.TokenIDs) {
		t.Errorf("the API gave %+v\nthis process %+v", c, alone)
	}
	chat := `{"model":"fairy","messages":[{"role":"user","content":"Tell me a story"}],"max_completion_tokens":8,"temperature":0}`
	told, err := http.Post("http://"+addr+"/v1/chat/completions", "application/json", strings.NewReader(chat))
	if err != nil {
		t.Fatal(err)
	}
	defer told.Body.Close()
	var reply struct {
		Object  string
		Choices []struct {
			Message      struct{ Role, Content string }
			FinishReason string `json:"finish_reason"`
		}
		Usage struct {
			CompletionTokens int `json:"completion_tokens"`
		}
	}
	if err := json.NewDecoder(told.Body).Decode(&reply); err != nil || len(reply.Choices) != 1 {
		t.Fatalf("%v, %+v", err, reply)
	}
	if c := reply.Choices[0]; reply.Object != "chat.completion" || c.Message.Role != "assistant" || c.Message.Content == "" || c.FinishReason == "length" && reply.Usage.CompletionTokens != 8 {
		t.Errorf("the chat gave %+v", reply)
	}
	for path, want := range map[string]string{"/metrics": "kevlard_tokens_total", "/v1/models": `"id":"fairy"`, "/readyz": "true"} {
		if code, text := fetch(t, "http://"+addr+path); code != 200 || !strings.Contains(text, want) {
			t.Errorf("%s: %d, want %q in %.300s", path, code, want, text)
		}
	}
	listen, _ := listenFlags(t, "n2")
	if r := program(t, nil, "", append([]string{
		"agent", "--dev", "--name", "n2", "--data-dir", t.TempDir(), "--ring-secret-file", filepath.Join(filepath.Dir(socket), "secret"),
		"--control", socket,
	}, listen...)...); r.code != 1 || !strings.Contains(r.stderr, "another daemon answers on it") {
		t.Errorf("a second agent on the socket: %+v", r)
	}
	if r := program(t, nil, "", "leave", "--control", socket); r.code != 0 {
		t.Errorf("leave: %+v", r)
	}
}

// TestAgentGateway runs a gateway alone: it works, and says what it lacks.
func TestAgentGateway(t *testing.T) {
	socket, addr := startAgent(t, "--role", "gateway", "--models-dirs", filepath.Dir(fairyFile(t)))
	eventually(t, func() bool { // "starting" comes first
		code, text := fetch(t, "http://"+addr+"/readyz")
		return code == 503 && strings.Contains(text, "no node of the ring holds a model")
	})
	if code, text := fetch(t, "http://"+addr+"/healthz"); code != 200 {
		t.Errorf("healthz: %d %s", code, text)
	}
	if r := program(t, nil, "", "members", "-o", "json", "--control", socket); r.code != 0 || !strings.Contains(r.stdout, `"role": "gateway"`) {
		t.Errorf("members: %+v", r)
	}
}

// TestAgentKeys takes a key away from a running agent with SIGHUP.
func TestAgentKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	var keys, lines []string
	for _, name := range []string{"alice", "bob"} {
		key, line, err := api.NewKey(name)
		if err != nil {
			t.Fatal(err)
		}
		keys, lines = append(keys, key), append(lines, line+"\n")
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(lines[0] + lines[1])
	// Without this, a signal that comes before the agent listens for it ends the test.
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, syscall.SIGHUP)
	defer signal.Stop(ignored)
	_, addr := startAgent(t, "--role", "gateway", "--api-keys-file", file)
	status := func(key string) int {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, "http://"+addr+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for key, want := range map[string]int{keys[0]: 200, keys[1]: 200, "": 401, "kvl-x": 401} {
		if got := status(key); got != want {
			t.Errorf("key %q: status %d, want %d", key, got, want)
		}
	}
	write(lines[0])
	eventually(t, func() bool {
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		return status(keys[1]) == 401
	})
	if got := status(keys[0]); got != 200 {
		t.Errorf("the key that stays: status %d", got)
	}
}

// TestNameTaken: an agent whose name another one has ends with one line that says so.
func TestNameTaken(t *testing.T) {
	socket, _ := startAgent(t, "--role", "gateway", "--models-dirs", t.TempDir())
	listen, _ := listenFlags(t, "n2")
	r := program(t, nil, "", append([]string{
		"agent", "--dev", "--name", "n1", "--data-dir", t.TempDir(), "--ring-secret-file", filepath.Join(filepath.Dir(socket), "secret"),
		"--control", filepath.Join(t.TempDir(), "k.sock"), "--role", "gateway", "--models-dirs", t.TempDir(), "--ring-join", loopback.IP(t) + ":7946",
	}, listen...)...)
	lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
	last := lines[len(lines)-1]
	if r.code != 1 || !strings.HasPrefix(last, `kevlard: node name "n1" is held in ring "default" by peer `) || !strings.Contains(last, "kevlard force-leave n1") {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
}

// TestDataDirectoryInUse starts a second daemon on the directory of a first one, with
// addresses and a socket of its own: it would be the same peer under another name.
func TestDataDirectoryInUse(t *testing.T) {
	socket, _ := startAgent(t, "--role", "gateway", "--models-dirs", t.TempDir())
	dir := filepath.Dir(socket)
	listen, _ := listenFlags(t, "n2")
	second := append([]string{
		"agent", "--dev", "--name", "n2", "--data-dir", dir, "--ring-secret-file", filepath.Join(dir, "secret"),
		"--control", filepath.Join(t.TempDir(), "k.sock"),
	}, listen...)
	if r := program(t, nil, "", second...); r.code != 1 || !strings.Contains(r.stderr, dir+": another daemon runs with it") || !strings.Contains(r.stderr, "[node] data_dir") {
		t.Errorf("%+v", r)
	}
	if r := program(t, nil, "", "leave", "--control", socket); r.code != 0 {
		t.Fatalf("leave: %+v", r)
	}
	eventually(t, func() bool { // the first has let go of it
		f, err := openDataDir(dir)
		if err == nil {
			f.Close()
		}
		return err == nil
	})
}

func fetch(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}
