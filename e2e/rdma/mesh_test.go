//go:build rdma

package rdma

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// shared is the folder that both hosts see.
const shared = "/host"

// deadline of one step: an emulated host is slow, and the machine may be loaded.
const deadline = 110 * time.Second

// pause between two looks: each starts a program, which takes an emulated processor a second.
const pause = 3 * time.Second

// node is a daemon of the mesh: host a or b, with layers.
type node struct {
	name, host string
	index      int // among those of its host
	lo, hi     int
}

// nodes are a gateway and two hosts that hold the whole model. An emulated host has no room
// for more: one daemon and one engine take all that its processor gives.
func nodes() []node {
	return []node{{"gate", "a", 0, 0, 0}, {"a1", "a", 1, 0, 8}, {"b1", "b", 0, 0, 8}}
}

func (n node) ip() string {
	if n.host == "a" {
		return "10.8.0.1"
	}
	return "10.8.0.2"
}

func (n node) port(service int) int { return 18080 + 10*n.index + service }

func (n node) at(service int) string { return fmt.Sprintf("%s:%d", n.ip(), n.port(service)) }

// api is only for its own host: it has no keys.
func (n node) api() string { return fmt.Sprintf("127.0.0.1:%d", n.port(0)) }

func (n node) dir() string { return "/tmp/" + n.name }

// config is the daemon's file.
func (n node) config(model string) string {
	var join []string
	for _, m := range nodes() {
		if m != n {
			join = append(join, strconv.Quote(m.at(1)))
		}
	}
	role, stages := "host", fmt.Sprintf("assign = [{ model = \"fairy\", lo = %d, hi = %d }]", n.lo, n.hi)
	if n.hi == 0 {
		role, stages = "gateway", ""
	}
	return fmt.Sprintf(`
[node]
name = %q
role = %q
data_dir = %q
[ring]
bind = %q
advertise = %q
join = [%s]
secret_file = "/tmp/secret"
profile = "wan"
[mesh]
bind = %q
bulk_port = %d
transport = "auto"
plain = true
[api]
listen = %q
[models]
dirs = [%q]
%s
[kv]
standbys = 1
[engine]
threads = 1
memory_bytes = 33554432
[control]
socket = %q
`, n.name, role, n.dir(), n.at(1), n.at(1), strings.Join(join, ", "), n.at(2), n.port(3), n.api(), model, stages, n.dir()+"/kevlard.sock")
}

// start runs the daemon.
func (n node) start(t *testing.T, kevlard, model string) *exec.Cmd {
	t.Helper()
	if err := os.MkdirAll(n.dir(), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(n.dir(), "kevlard.toml")
	if err := os.WriteFile(file, []byte(n.config(model)), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(n.dir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(kevlard, "agent", "--config", file)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be dead already
		_ = cmd.Wait()
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s:\n%s", n.name, text[max(0, len(text)-3000):])
		}
	})
	return cmd
}

// ask runs kevlard against a daemon of this host and decodes its JSON.
func (n node) ask(kevlard string, into any, args ...string) error {
	cmd := exec.Command(kevlard, append([]string{"--control", n.dir() + "/kevlard.sock", "-o", "json"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("kevlard %v: %w: %s%s", args, err, out, stderr.Bytes())
	}
	return json.Unmarshal(out, into)
}

// until waits for a condition.
func until(t *testing.T, what string, cond func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(pause) {
		if err = cond(); err == nil {
			return
		}
	}
	t.Fatalf("not within %v: %s: %v", deadline, what, err)
}

// publish writes the metrics of a daemon of this host to where the other sees them.
func (n node) publish() {
	r, err := http.Get("http://" + n.api() + "/metrics")
	if err != nil {
		return // it is not up, or dead
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	file := filepath.Join(shared, "metrics-"+n.name)
	if err == nil && os.WriteFile(file+".new", text, 0o600) == nil {
		_ = os.Rename(file+".new", file) // else the next time
	}
}

// metric sums a counter of a daemon, as last published, over the labels that contain a text.
func (n node) metric(name, label string) float64 {
	text, err := os.ReadFile(filepath.Join(shared, "metrics-"+n.name))
	if err != nil {
		return 0
	}
	sum := 0.0
	for _, m := range regexp.MustCompile(`(?m)^`+name+`\{([^}]*)\} (\S+)$`).FindAllStringSubmatch(string(text), -1) {
		if v, err := strconv.ParseFloat(m[2], 64); err == nil && strings.Contains(m[1], label) {
			sum += v
		}
	}
	return sum
}

// generated is what `kevlard generate -o json` prints.
type generated struct {
	Text      string `json:"text"`
	Tokens    []int  `json:"token_ids"`
	Failovers []struct {
		AtToken int     `json:"at_token"`
		Cause   string  `json:"cause"`
		GapMS   float64 `json:"gap_ms"`
	} `json:"failovers"`
}

// sessions is what `kevlard sessions -o json` prints.
type sessions struct {
	Sessions []struct {
		Tokens            int        `json:"tokens"`
		Route             []string   `json:"route"`
		Standbys          [][]string `json:"standbys"`
		ReplicatedThrough []int      `json:"replicated_through"`
	} `json:"sessions"`
}

// TestPeerMesh streams a story whose KV is copied to the other host over RDMA, kills the
// daemon that computes it in the middle, and wants the same tokens as without that.
func TestPeerMesh(t *testing.T) {
	role, kevlard, model := os.Getenv("RDMA_ROLE"), os.Getenv("KEVLARD_BIN"), os.Getenv("KEVLARD_MODELS")
	if role == "" || kevlard == "" || model == "" {
		t.Skip("needs two emulated hosts and a binary: make test-rdma")
	}
	// The shared folder is slow, and every engine reads the program again.
	program, err := os.ReadFile(kevlard)
	if err != nil {
		t.Fatal(err)
	}
	kevlard = "/tmp/kevlard"
	if err := os.WriteFile(kevlard, program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/tmp/secret", []byte(strings.Repeat("5a", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Whichever way it ends, the other host ends too.
	defer os.WriteFile(filepath.Join(shared, "done-"+role), nil, 0o600)
	daemons := map[string]*exec.Cmd{}
	for _, n := range nodes() {
		if n.host == role {
			daemons[n.name] = n.start(t, kevlard, model)
		}
	}
	if role == "a" {
		go obey(role, daemons)
		tell(t, kevlard)
		return
	}
	for end := time.Now().Add(5 * deadline); !exists("done-a"); time.Sleep(pause) {
		if time.Now().After(end) {
			t.Fatal("the other host has not ended")
		}
		serve(role, daemons)
	}
}

func exists(file string) bool {
	_, err := os.Stat(filepath.Join(shared, file))
	return err == nil
}

func obey(role string, daemons map[string]*exec.Cmd) {
	for !exists("done-a") {
		serve(role, daemons)
		time.Sleep(pause)
	}
}

// serve does for this host what the test asks of both.
func serve(role string, daemons map[string]*exec.Cmd) {
	kill(daemons)
	for _, n := range nodes() {
		if n.host == role {
			n.publish()
		}
	}
}

// kill kills those daemons of this host that are to die.
func kill(daemons map[string]*exec.Cmd) {
	for name, d := range daemons {
		if exists("die-" + name) {
			_ = d.Process.Kill() // once is enough
		}
	}
}

// tell has the story told twice, the second time with a death.
func tell(t *testing.T, kevlard string) {
	owner := nodes()[0]
	story := []string{"generate", "--seed", "7", "--temperature", "0.8", "--max-tokens", "120", "Once upon a time there was a king who"}
	var members struct {
		Nodes []struct {
			Name  string `json:"name"`
			Ready bool   `json:"ready"`
		} `json:"nodes"`
	}
	until(t, "all nodes are ready", func() error {
		if err := owner.ask(kevlard, &members, "members"); err != nil {
			return err
		}
		for _, m := range members.Nodes {
			if !m.Ready {
				return fmt.Errorf("%+v", members)
			}
		}
		if len(members.Nodes) != len(nodes()) {
			return fmt.Errorf("%+v", members)
		}
		return nil
	})
	t.Logf("ready: %+v", members.Nodes)
	var whole generated
	if err := owner.ask(kevlard, &whole, story...); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d tokens: %s", len(whole.Tokens), whole.Text)
	until(t, "KV goes to the other host over RDMA", func() error {
		sum := 0.0
		for _, n := range nodes() {
			sum += n.metric("kevlard_replicated_bytes_total", `transport="rdma"`)
		}
		if sum > 0 {
			return nil
		}
		var again generated
		return fmt.Errorf("no byte yet; %v", owner.ask(kevlard, &again, story...))
	})
	before := map[string]float64{}
	for _, n := range nodes() {
		before[n.name] = n.metric("kevlard_replicated_bytes_total", `transport="rdma"`)
	}
	var broken generated
	ended := make(chan error, 1)
	other := slices.Clone(story)
	go func() { ended <- owner.ask(kevlard, &broken, other...) }()
	victim := ""
	until(t, "the story is half told and copied", func() error {
		var s sessions
		if err := owner.ask(kevlard, &s, "sessions"); err != nil {
			return err
		}
		for _, x := range s.Sessions {
			if x.Tokens < 40 || len(x.Route) != 1 || len(x.ReplicatedThrough) != 1 || slices.Min(x.ReplicatedThrough) < 20 {
				continue
			}
			victim = x.Route[0]
			t.Logf("%d tokens, route %v, standbys %v, copied through %v", x.Tokens, x.Route, x.Standbys, x.ReplicatedThrough)
			return os.WriteFile(filepath.Join(shared, "die-"+victim), nil, 0o600)
		}
		return fmt.Errorf("%+v", s)
	})
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(3 * deadline): // an emulated engine makes two tokens a second
		t.Fatal("the story does not end")
	}
	if !slices.Equal(whole.Tokens, broken.Tokens) || len(whole.Tokens) == 0 {
		t.Errorf("another story after the death of %s:\n%v\n%v", victim, whole.Tokens, broken.Tokens)
	}
	if len(broken.Failovers) == 0 {
		t.Error("nothing died")
	}
	t.Logf("killed %s; %d tokens, the same; failovers %+v", victim, len(broken.Tokens), broken.Failovers)
	for _, n := range nodes() {
		now, tcp := n.metric("kevlard_replicated_bytes_total", `rdma`), n.metric("kevlard_replicated_bytes_total", `tcp`)
		t.Logf("%s: %.0f bytes over RDMA, %.0f of them of the second story; %.0f over TCP", n.name, now, now-before[n.name], tcp)
		if n.name == victim && now == before[n.name] {
			t.Errorf("%s died before it sent a byte of the second story over RDMA", n.name)
		}
	}
	for _, n := range nodes() {
		if n.host == "a" && n.name != victim {
			out, err := exec.Command(kevlard, "--control", n.dir()+"/kevlard.sock", "-o", "json", "events", "--since", "1h").Output()
			if err != nil {
				t.Error(err)
			}
			for line := range strings.Lines(string(out)) {
				if regexp.MustCompile(`"type":"(transport|failover|recovered|silent|node-dead)"`).MatchString(line) {
					t.Log(strings.TrimSpace(line))
				}
			}
		}
	}
}
