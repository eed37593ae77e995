package config

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kevlard/kevlard"
)

func load(file string, env, flags map[string]string) (Loaded, []string) {
	loaded, problems := Load(Source{Defaults: Defaults(), File: "f.toml", Data: []byte(file), Env: env, Flags: flags})
	texts := make([]string, len(problems))
	for i, p := range problems {
		texts[i] = p.String()
	}
	return loaded, texts
}

// TestProblems checks that each mistake is named with its line, its key and what to
// do, in one line.
func TestProblems(t *testing.T) {
	for _, c := range []struct{ name, file, want string }{
		{"not TOML", "[ring\n", "f.toml:1: not TOML: "},
		{"twice", "[ring]\nname = 'a'\nname = 'b'\n", "f.toml:3: name: not TOML: key name is already defined"},
		{"unknown key", "[ring]\nbnid = 'x'\n", "f.toml:2: ring.bnid: unknown key (did you mean ring.bind?)"},
		{"key of another table", "[node]\n\nlisten = 'x'\n", "f.toml:3: node.listen: unknown key (did you mean api.listen?)"},
		{"unknown table", "[rings]\nname = 'x'\n", "f.toml:1: rings: unknown table (did you mean ring?)"},
		{"no table", "listen = 'x'\n", "f.toml:1: listen: unknown key outside any table (did you mean api.listen?)"},
		{"wrong type", "[node]\nname = 5\n", "f.toml:2: node.name: a whole number is given: want a string"},
		{"bool as text", "[ring]\ndev = 'yes'\n", "f.toml:2: ring.dev: a string is given: want true or false"},
		{"list as text", "[ring]\njoin = 'a:1'\n", "f.toml:2: ring.join: a string is given: want an array of strings"},
		{"list of numbers", "[ring]\njoin = ['a:1', 2]\n", "f.toml:2: ring.join: entry 2 is a whole number: want a string"},
		{"bad name", "[node]\nname = 'a b'\n", "f.toml:2: node.name: \"a b\" is not a name: want 1 to 63 letters, digits, '.', '_' or '-', starting with a letter or digit"},
		{"bad role", "[node]\nrole = 'boss'\n", `f.toml:2: node.role: "boss" is not allowed: want host or gateway`},
		{"bad profile", "[ring]\nprofile = 'fast'\n", `f.toml:2: ring.profile: "fast" is not allowed: want lan or wan`},
		{"no port", "[ring]\nbind = '10.0.0.1'\n", `f.toml:2: ring.bind: "10.0.0.1" is not an address: want IP:PORT`},
		{"port of 9 digits", "[ring]\nbind = '10.0.0.1:123456789'\n", `f.toml:2: ring.bind: "10.0.0.1:123456789" has no valid port: want 1 to 65535`},
		{"name to bind", "[mesh]\nbind = 'gpu-01:7947'\n", `f.toml:2: mesh.bind: "gpu-01:7947" has no IP address: want IP:PORT, such as 0.0.0.0:7946 (host names are not taken: /etc/hosts often maps them to 127.0.1.1)`},
		{"all ports to bind", "[ring]\nbind = ':7946'\n", `f.toml:2: ring.bind: ":7946" is not an address: want IP:PORT`},
		{"unspecified advertise", "[ring]\nadvertise = '0.0.0.0'\n", `f.toml:2: ring.advertise: "0.0.0.0" is not one host's address: want one of this host that the others reach`},
		{"unspecified advertise with port", "[ring]\nadvertise = '[::]:7'\n", `f.toml:2: ring.advertise: "[::]:7" is not one host's address: want one of this host that the others reach`},
		{"multicast fabric", "[mesh]\nfabric = '239.0.0.1'\n", `f.toml:2: mesh.fabric: "239.0.0.1" is not one host's address: want one of this host that the others reach`},
		{"gossip on the mesh's port", "[mesh]\nbind = '0.0.0.0:7946'\n", `f.toml:2: mesh.bind: 0.0.0.0:7946 is taken by ring.bind = 0.0.0.0:7946: give each its own port`},
		{"API on the mesh's port", "[api]\nlisten = '127.0.0.1:7947'\n", `f.toml:2: api.listen: 127.0.0.1:7947 is taken by mesh.bind = 0.0.0.0:7947: give each its own port`},
		{"bulk on the mesh's port", "[mesh]\nbulk_port = 7947\n", `f.toml:2: mesh.bulk_port: 0.0.0.0:7947 is taken by mesh.bind = 0.0.0.0:7947: give each its own port`},
		{"port 0", "[mesh]\nbind = '10.0.0.1:0'\n", `f.toml:2: mesh.bind: "10.0.0.1:0" has no valid port: want 1 to 65535`},
		{"transport", "[mesh]\ntransport = 'roce'\n", `f.toml:2: mesh.transport: "roce" is not allowed: want auto or tcp or rdma`},
		{"standbys", "[kv]\nstandbys = 2\n", `f.toml:2: kv.standbys: 2 is out of range: want 0 to 1`},
		{"bandwidth", "[kv]\nbandwidth = 1\n", `f.toml:2: kv.bandwidth: 1 is out of range: want 0, for no cap, or at least 65536`},
		{"bulk port", "[mesh]\nbulk_port = 70000\n", `f.toml:2: mesh.bulk_port: 70000 is out of range: want 1 to 65535`},
		{"fabric", "[mesh]\nfabric = 'ib0'\n", `f.toml:2: mesh.fabric: "ib0" is not an IP address`},
		{"open API", "[api]\nlisten = '0.0.0.0:8080'\n", `f.toml:2: api.listen: "0.0.0.0:8080" is reachable from other hosts, which needs API keys: set api.keys_file (kevlard keygen --api NAME makes a key), or listen on 127.0.0.1`},
		{"open API port", "[api]\nlisten = ':8080'\n", `f.toml:2: api.listen: ":8080" is not an address: want HOST:PORT`},
		{"certificate alone", "[api]\ntls_cert = '/c'\n", `f.toml:2: api.tls_cert: TLS needs the certificate's key too: set api.tls_key`},
		{"key alone", "[api]\ntls_key = '/k'\n", `f.toml:2: api.tls_key: TLS needs the certificate too: set api.tls_cert`},
		{"keys file type", "[api]\nkeys_file = 1\n", `f.toml:2: api.keys_file: a whole number is given: want a string`},
		{"device", "[engine]\ndevices = ['cpu', 'gpu0']\n", `f.toml:2: engine.devices: entry 2: "gpu0" is not a device: want cpu, or cuda:N with N from 0`},
		{"threads", "[engine]\nthreads = -1\n", `f.toml:2: engine.threads: -1 is out of range: want 0 to 256`},
		{"log level", "[log]\nlevel = 'loud'\n", `f.toml:2: log.level: "loud" is not allowed: want debug or info or warn or error`},
		{"assign type", "[models]\nassign = 'all'\n", `f.toml:2: models.assign: a string is given: want "auto" or an array of {model, lo, hi}`},
		{"assign key", "[models]\nassign = [{model = 'm', lo = 0, hi = 2, x = 1}]\n", `f.toml:2: models.assign: entry 1 has an unknown key "x": want model, lo and hi`},
		{"assign lacks", "[models]\nassign = [{model = 'm', lo = 0}]\n", `f.toml:2: models.assign: entry 1 lacks the key "hi": want model, lo and hi`},
		{"assign order", "[models]\nassign = [{model = 'm', lo = 2, hi = 2}]\n", `f.toml:2: models.assign: entry 1: layers lo = 2, hi = 2: want 0 <= lo < hi`},
		{"assign overlap", "[models]\nassign = [{model = 'm', lo = 0, hi = 3}, {model = 'm', lo = 2, hi = 4}]\n", `f.toml:2: models.assign: entry 2: layers [2,4) of m overlap [0,3), named before`},
		{"gateway with stages", "[node]\nrole = 'gateway'\n[models]\nassign = [{model = 'm', lo = 0, hi = 3}]\n", `f.toml:4: models.assign: a gateway holds no stages: remove it, or set node.role = "host"`},
		{"loopback bind", "[ring]\nbind = '127.0.0.1:7946'\n", `f.toml:2: ring.bind: "127.0.0.1:7946" is a loopback address, where no other host reaches this node: bind another one, or set ring.dev = true for a mesh on one machine`},
		{"loopback advertise", "[ring]\nadvertise = '127.0.0.1'\n", `f.toml:2: ring.advertise: "127.0.0.1" is a loopback address, where no other host reaches this node: name another one, or set ring.dev = true for a mesh on one machine`},
		{"label", "[node]\nlabels = {a = 1}\n", `f.toml:2: node.labels: label "a" is a whole number: want a string`},
		{"huge", strings.Repeat("#", maxFile+1), "f.toml: 1048577 bytes are too many for a configuration: at most 1048576"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, got := load(c.file, nil, nil)
			if len(got) != 1 || !strings.HasPrefix(got[0], c.want) || !strings.HasSuffix(c.want, " ") && got[0] != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			if strings.Contains(strings.Join(got, ""), "\n") {
				t.Errorf("more than one line: %q", got)
			}
		})
	}
}

// TestAllProblems checks that one run names all mistakes, in the order of lines.
func TestAllProblems(t *testing.T) {
	_, got := load("[node]\nrole = 'x'\nnmae = 'y'\n[api]\nlisten = 7\nmax_queue = 0\n[rnig]\n", nil, nil)
	want := []string{"f.toml:2: node.role", "f.toml:3: node.nmae", "f.toml:5: api.listen", "f.toml:6: api.max_queue", "f.toml:7: rnig"}
	if len(got) != len(want) {
		t.Fatalf("got %q", got)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("problem %d is %q, want %q", i, got[i], want[i])
		}
	}
}

// TestNasty is a file with everything wrong that can be: each mistake is named once,
// in one line, with its key, its line and the key that was meant.
func TestNasty(t *testing.T) {
	const file = `# a comment with "quotes" and [brackets]
listen = "127.0.0.1:80"
"odd\nkey" = 1
[node]
name = "two words"
role = 'boss'
lables = { rack = 7 }
labels = { rack = 7 }
zone = """
a
b"""
[[ring]]
bind = "x"
[mesh]
bind = "gpu-01:7947"
bulk_port = 70000
fabirc = "10.0.0.1"
listen = "10.0.0.1:1"
[api]
listen = "0.0.0.0:8080"
keys_file = 5
tls_cert = "/c"
max_queue = "many"
[models]
dirs = ["", "/m", ""]
assign = [
  { model = "", lo = 0, hi = 1 },
  { model = "m", lo = 3, hi = 2 },
]
[engine]
devices = ["gpu", "cuda:x"]
threads = 1.5
[lgo]
level = "loud"
[log]
level = "loud"
format = true
`
	_, got := load(file, map[string]string{"KEVLARD_ENGINE_CELLS": "-1"}, map[string]string{"ring.join": "a:1,b,c:0"})
	want := []string{
		`flag --ring-join: ring.join: entry 2: "b" is not an address: want HOST:PORT`,
		`flag --ring-join: ring.join: entry 3: "c:0" has no valid port: want 1 to 65535`,
		`env KEVLARD_ENGINE_CELLS: engine.cells: -1 is out of range: want 0 to 16777216`,
		`f.toml:2: listen: unknown key outside any table (did you mean api.listen?)`,
		`f.toml:3: "odd\nkey": unknown key outside any table`,
		`f.toml:5: node.name: "two words" is not a name: want 1 to 63 letters, digits, '.', '_' or '-', starting with a letter or digit`,
		`f.toml:6: node.role: "boss" is not allowed: want host or gateway`,
		`f.toml:7: node.lables: unknown key (did you mean node.labels?)`,
		`f.toml:8: node.labels: label "rack" is a whole number: want a string`,
		`f.toml:9: node.zone: "a\nb" is not a name: want 1 to 63 letters, digits, '.', '_' or '-', starting with a letter or digit`,
		`f.toml:12: ring: an array is given: want a table, [ring]`,
		`f.toml:15: mesh.bind: "gpu-01:7947" has no IP address: want IP:PORT, such as 0.0.0.0:7946 (host names are not taken: /etc/hosts often maps them to 127.0.1.1)`,
		`f.toml:16: mesh.bulk_port: 70000 is out of range: want 1 to 65535`,
		`f.toml:17: mesh.fabirc: unknown key (did you mean mesh.fabric?)`,
		`f.toml:18: mesh.listen: unknown key (did you mean api.listen?)`,
		`f.toml:21: api.keys_file: a whole number is given: want a string`,
		`f.toml:22: api.tls_cert: TLS needs the certificate's key too: set api.tls_key`,
		`f.toml:23: api.max_queue: a string is given: want a whole number`,
		`f.toml:25: models.dirs: entry 1: it is empty: give a path`,
		`f.toml:25: models.dirs: entry 3: it is empty: give a path`,
		`f.toml:26: models.assign: entry 1: model is empty: give a GGUF file or a name found in models.dirs`,
		`f.toml:26: models.assign: entry 2: layers lo = 3, hi = 2: want 0 <= lo < hi`,
		`f.toml:31: engine.devices: entry 1: "gpu" is not a device: want cpu, or cuda:N with N from 0`,
		`f.toml:31: engine.devices: entry 2: "cuda:x" is not a device: want cpu, or cuda:N with N from 0`,
		`f.toml:32: engine.threads: a float is given: want a whole number`,
		`f.toml:33: lgo: unknown table (did you mean log?)`,
		`f.toml:36: log.level: "loud" is not allowed: want debug or info or warn or error`,
		`f.toml:37: log.format: a boolean is given: want a string`,
	}
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			t.Errorf("missing: %s", want[i])
		case i >= len(want):
			t.Errorf("one more: %s", got[i])
		case got[i] != want[i]:
			t.Errorf("problem %d is\n%s\nwant\n%s", i, got[i], want[i])
		}
	}
}

// TestBrokenInTheMiddle checks that mistakes before one of syntax are named too, and
// that nothing is said to be missing that may stand behind it.
func TestBrokenInTheMiddle(t *testing.T) {
	_, got := load("[node]\nrole = 'x'\n[api]\nlisten = '0.0.0.0:80'\nmax_queue = \nkeys_file = '/k'\n", nil, nil)
	if len(got) != 2 || got[0] != `f.toml:2: node.role: "x" is not allowed: want host or gateway` || !strings.HasPrefix(got[1], "f.toml:5: ") || !strings.Contains(got[1], "not TOML: ") {
		t.Errorf("got %q", got)
	}
}

// TestLongValues checks that a message has an end, whatever is in the file.
func TestLongValues(t *testing.T) {
	long := strings.Repeat("x\u00e9", 100_000)
	_, got := load("[node]\nrole = '"+long+"'\n'"+long+"' = 1\n["+strings.Repeat("y", 100_000)+"]\n", nil, nil)
	if len(got) != 3 {
		t.Fatalf("%d problems", len(got))
	}
	for _, p := range got {
		if len(p) > 3*maxProblem || !utf8.ValidString(p) || strings.Contains(p, "\n") {
			t.Errorf("%d bytes: %.200q", len(p), p)
		}
	}
	if !strings.HasSuffix(got[0], "is not allowed: want host or gateway") {
		t.Errorf("%q", got[0])
	}
}

// TestPrecedence checks flag over environment over file over default, and that the
// origins are right.
func TestPrecedence(t *testing.T) {
	file := "[node]\nname = 'file'\nzone = 'file'\nrole = 'gateway'\n"
	env := map[string]string{"KEVLARD_NODE_NAME": "env", "KEVLARD_NODE_ZONE": "env", "KEVLARD_RING_JOIN": "a:1, b:2", "KEVLARD_NODE_LABELS": "rack=7,row=b"}
	loaded, problems := load(file, env, map[string]string{"node.name": "flag"})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	c := loaded.Config
	if c.Node.Name != "flag" || c.Node.Zone != "env" || c.Node.Role != "gateway" || c.API.Listen != "127.0.0.1:8080" {
		t.Errorf("got %+v", c)
	}
	if !slices.Equal(c.Ring.Join, []string{"a:1", "b:2"}) || c.Node.Labels["row"] != "b" {
		t.Errorf("join %q, labels %q", c.Ring.Join, c.Node.Labels)
	}
	for key, want := range map[string]string{
		"node.name": "flag --node-name", "node.zone": "env KEVLARD_NODE_ZONE", "node.role": "f.toml:4", "api.listen": "default",
	} {
		if got := loaded.Origin[key]; got != want {
			t.Errorf("%s comes from %q, want %q", key, got, want)
		}
	}
}

// TestBadText checks mistakes in flags and the environment.
func TestBadText(t *testing.T) {
	for _, c := range []struct{ key, text, want string }{
		{"ring.dev", "maybe", `flag --ring-dev: ring.dev: "maybe" is not a boolean: want true or false`},
		{"engine.threads", "many", `flag --engine-threads: engine.threads: "many" is not a whole number`},
		{"models.assign", "m:0-", `flag --models-assign: models.assign: "m:0-" is not a stage: want MODEL:LO-HI`},
		{"models.assign", "m", `flag --models-assign: models.assign: "m" is not a stage: want MODEL:LO-HI`},
		{"node.labels", "rack", `flag --node-labels: node.labels: "rack" is not a label: want NAME=VALUE`},
	} {
		if _, got := load("", nil, map[string]string{c.key: c.text}); len(got) != 1 || got[0] != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// TestWholeTable checks that every key of the contract is accepted, and that those
// without effect say so.
func TestWholeTable(t *testing.T) {
	const all = `
[node]
name = "n"
role = "host"
data_dir = "/d"
labels = {rack = "1"}
zone = "z"
[ring]
bind = "10.0.0.1:1"
advertise = "10.0.0.0/8"
join = ["10.0.0.2:1"]
secret_file = "/s"
profile = "wan"
name = "r"
[mesh]
bind = "10.0.0.1:2"
fabric = "10.1.0.1"
bulk_port = 3
transport = "auto"
plain = false
[api]
listen = "127.0.0.1:4"
keys_file = "/k"
tls_cert = "/c"
tls_key = "/k"
max_queue = 5
resume_window = "60s"
[models]
dirs = ["/m"]
serve = [{name = "m", share = 1}]
[[models.assign]]
model = "m"
lo = 0
hi = 2
[kv]
block_tokens = 32
ram_bytes = 1048576
nvme_dir = "/n"
nvme_bytes = 1
standbys = 1
standby = "ram"
replicate_tokens = 1
replicate_ms = 1
bandwidth = 65536
high_water = 85
shed_water = 95
checkpoint_url = "file:///c"
checkpoint_tokens = 1
[engine]
devices = ["cpu"]
threads = 1
memory_bytes = 8589934592
backend_dir = "/b"
[control]
socket = "/s"
group = "g"
[log]
level = "warn"
format = "json"
[metrics]
listen = "x"
[trace]
endpoint = "x"
`
	loaded, problems := load(all, nil, nil)
	if len(problems) > 0 {
		t.Fatalf("problems %q", problems)
	}
	c := loaded.Config
	if len(c.Models.Assign) != 1 || c.Models.Assign[0] != (Assign{"m", kevlard.Layers{Lo: 0, Hi: 2}}) || c.Mesh.BulkPort != 3 || c.Log.Format != "json" {
		t.Errorf("got %+v", c)
	}
	var inert []string
	for _, w := range loaded.Warnings {
		if w.Text != "has no effect yet" || w.Where == "" {
			t.Errorf("warning %q", w)
		}
		inert = append(inert, w.Key)
	}
	slices.Sort(inert)
	want := "kv.checkpoint_tokens kv.checkpoint_url kv.high_water kv.nvme_bytes kv.nvme_dir kv.shed_water metrics.listen trace.endpoint"
	if got := strings.Join(inert, " "); got != want {
		t.Errorf("without effect:\n%s\nwant\n%s", got, want)
	}
}

// TestTextRoundTrip checks that what a field shows is what it reads.
func TestTextRoundTrip(t *testing.T) {
	c := Defaults()
	c.Ring.Join = []string{"a:1", "b:2"}
	c.Models.Assign = []Assign{{"/m:x.gguf", kevlard.Layers{Lo: 1, Hi: 3}}, {"n", kevlard.Layers{Lo: 0, Hi: 1}}}
	c.Models.Serve = []Serve{{"m:x", 2}, {"n", 1}}
	c.Node.Labels = map[string]string{"b": "2", "a": "1"}
	var d Config
	fields := d.Fields()
	for i, f := range c.Fields() {
		if err := fields[i].setText(f.Text()); err != nil {
			t.Errorf("%s: %v", f.Key, err)
		}
		if got := fields[i].Text(); got != f.Text() {
			t.Errorf("%s: %q became %q", f.Key, f.Text(), got)
		}
	}
}

// FuzzLoad checks that no file panics the loader, and that a file without problems
// gives values that are in range.
func FuzzLoad(f *testing.F) {
	for _, s := range []string{"", "[node]\nname='a'", "[[models.assign]]\nmodel='m'\nlo=0\nhi=1", "a.b.c=1", "[api]\nlisten={x=1}", "[node.labels]\na='b'"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		loaded, problems := load(text, nil, nil)
		if len(problems) > 0 {
			return
		}
		if n := loaded.Config.Mesh.BulkPort; n < 1 || n > 65535 {
			t.Fatalf("bulk port %d", n)
		}
		for _, a := range loaded.Config.Models.Assign {
			if a.Layers.Lo < 0 || a.Layers.Hi <= a.Layers.Lo {
				t.Fatalf("assigned %v", a)
			}
		}
	})
}
