package systemd

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const config = "/etc/kevlard/kevlard.toml"

// secret is that of all hosts; it protects nothing outside of the test.
var secret = strings.Repeat("ab", 32) + "\n"

// install installs the deb and configures it, as docs/operating.md says.
func (h *host) install(role string, others ...string) {
	h.t.Helper()
	h.deb("1.0.0")
	h.setUp(role, others...)
}

// setUp configures what is installed, and gives it the secret and the model.
func (h *host) setUp(role string, others ...string) {
	h.t.Helper()
	join := ""
	for _, o := range others {
		join += fmt.Sprintf("%q, ", o+":7946")
	}
	h.configure(fmt.Sprintf(`[node]
name = %q
role = %q
[ring]
secret_file = "/etc/kevlard/secret"
join = [%s]
advertise = "10.0.0.0/24"
[models]
assign = "auto"
[engine]
threads = 1
memory_bytes = 2147483648
[log]
level = "info"
`, h.name, role, strings.TrimSuffix(join, ", ")))
	h.write("/etc/kevlard/secret", secret, 0o600)
	h.run("chown", "kevlard:", "/etc/kevlard/secret")
	if role == "host" {
		model, err := os.ReadFile(os.Getenv("SUITE_MODEL"))
		h.must(err)
		h.write("/var/lib/kevlard/models/fairy-7m-q8_0.gguf", string(model), 0o644)
	}
}

// deb installs that version, or upgrades to it.
func (h *host) deb(version string) {
	h.t.Helper()
	h.run("dpkg", "-i", h.fetch(fmt.Sprintf("kevlard_%s-1_amd64.deb", version)))
}

// fetch copies a package to the host and returns its path there.
func (h *host) fetch(name string) string {
	h.t.Helper()
	data, err := os.ReadFile(filepath.Join(os.Getenv("SUITE_DEBS"), name))
	h.must(err)
	h.write("/var/tmp/"+name, string(data), 0o644)
	return "/var/tmp/" + name
}

// configure replaces the configuration; its owner and mode stay the package's.
func (h *host) configure(text string) {
	h.t.Helper()
	h.must(os.WriteFile(h.root+config, []byte(text), 0o640))
}

// edit replaces a text of the configuration.
func (h *host) edit(old, with string) {
	h.t.Helper()
	text, err := os.ReadFile(h.root + config)
	h.must(err)
	if !strings.Contains(string(text), old) {
		h.t.Fatalf("%q is not in the configuration", old)
	}
	h.configure(strings.Replace(string(text), old, with, 1))
}

// awaitReady waits until the node can take sessions.
func (h *host) awaitReady() {
	h.t.Helper()
	h.await("kevlard is ready", func() bool {
		_, err := h.try("kevlard", "status", "--check")
		return err == nil
	})
}

// awaitRing waits until the node sees that many members alive, and no others.
func (h *host) awaitRing(n int) {
	h.t.Helper()
	h.await(fmt.Sprintf("the ring has %d members", n), func() bool {
		alive := 0
		for _, m := range h.members() {
			if m.State == "alive" && m.Ready {
				alive++
			}
		}
		return alive == n
	})
}

type member struct {
	Name, ID, State, Boot, Reason string
	Ready                         bool
	PID                           int
	Engines                       []struct {
		PID    int
		Device string
	}
}

// members returns what the node sees, nothing if it does not answer.
func (h *host) members() []member {
	out, err := h.try("kevlard", "members", "-o", "json")
	var doc struct{ Nodes []member }
	if err != nil || json.Unmarshal([]byte(out), &doc) != nil {
		return nil
	}
	return doc.Nodes
}

// self returns the node's own line.
func (h *host) self() member {
	h.t.Helper()
	for _, m := range h.members() {
		if m.Name == h.name {
			return m
		}
	}
	h.fail("it is no member of its own ring")
	return member{}
}

// generate returns the tokens of a greedy answer by this node.
func (h *host) generate(prompt string, tokens int) string {
	h.t.Helper()
	out := h.run("curl", "-sS", "--max-time", "300", "http://127.0.0.1:8080/v1/completions", "-H", "Content-Type: application/json",
		"-d", fmt.Sprintf(`{"model":"fairy","prompt":%q,"max_tokens":%d,"temperature":0,"ignore_eos":true}`, prompt, tokens))
	var doc struct {
		Choices []struct{ Text string }
		Usage   struct {
			CompletionTokens int `json:"completion_tokens"`
		}
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Choices) != 1 || doc.Usage.CompletionTokens != tokens {
		h.fail("no answer of %d tokens: %s", tokens, out)
	}
	return doc.Choices[0].Text
}
