package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestUsage checks the exit code and the one line on stderr of each mistake.
func TestUsage(t *testing.T) {
	dir := t.TempDir()
	none := filepath.Join(dir, "none.sock")
	open := filepath.Join(dir, "open-secret")
	if err := os.WriteFile(open, []byte(strings.Repeat("00", 32)), 0o644); err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(dir, "short-secret")
	if err := os.WriteFile(short, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	agent := func(rest string) string {
		return "agent --dev --name n --data-dir " + dir + "/data --ring-bind 127.0.0.1:1 --models-dirs " + dir + " --control " + dir + "/k.sock " + rest
	}
	const noDaemon = ": no daemon answers (connect: no such file or directory): start one with kevlard agent, or name its socket with --control"
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"membres", 2, `kevlard has no verb "membres" (did you mean members?): see kevlard --help`},
		{"model lst", 2, `kevlard model has no verb "lst" (did you mean ls?): see kevlard model --help`},
		{"model", 2, "model needs a verb: one of [ls inspect verify fetch synth]"},
		{"members --wacth", 2, "kevlard members has no flag --wacth (did you mean --watch?)"},
		{"members x --bogus", 2, "kevlard members has no flag --bogus"},
		{"--bogus members", 2, "kevlard has no flag --bogus"},
		{"members -o yaml", 2, `flag -o is "yaml": want table or json`},
		{"members -o", 2, "flag -o needs a value"},
		{"members x", 2, `members takes no arguments, but got "x"`},
		{"generate", 2, "generate needs PROMPT"},
		{"generate a b", 2, `generate takes one argument, PROMPT, but got a second: "b" (quote an argument that has spaces)`},
		{"generate a -n 0", 2, "flag --max-tokens is 0: want at least 1"},
		{"generate a -n many", 2, `flag -n is "many": want a whole number`},
		{"events --since soon", 2, `flag --since is "soon": want a duration such as 90s, 10m or 1h30m`},
		{"generate a --temperature hot", 2, `flag --temperature is "hot": want a number`},
		{"members --watch=perhaps", 2, `flag --watch is "perhaps": want true or false`},
		{"members --log-level loud", 2, `flag --log-level: log.level: "loud" is not allowed: want debug or info or warn or error`},
		{"status --log-format xml", 2, `flag --log-format: log.format: "xml" is not allowed: want text or json`},
		{"events --since -5m", 2, "flag --since is -5m0s: want a positive duration such as 10m"},
		{"bench failover --fault x", 2, "--fault x: want one of kill, stop, drop, engine-kill, slow"},
		{"bench failover --nodes 6", 2, "--nodes 6 with --stages 4: want a multiple, at least 8, so that every stage has two holders"},
		{"bench failover --slow-share 1", 2, "--slow-share 1: want more than 0 and less than 1"},
		{"bench failover --calm 0s", 2, "--calm 0s: want a positive duration such as 5s"},
		{"bench failover --faults 0", 2, "--faults 0: want at least 1"},
		{"bench overhead --pairs 1", 2, "--pairs 1: want at least 2"},
		{"bench overhead --nodes 4", 2, "--nodes 4 with --stages 4 and --standbys 1: want at least 8, so that every stage has that many other holders"},
		{"leave --timeout -1s", 2, "flag --timeout is -1s: want a positive duration such as 60s, at most 168h0m0s"},
		{"leave --timeout 2562047h", 2, "flag --timeout is 2562047h0m0s: want a positive duration such as 60s, at most 168h0m0s"},
		{"join", 2, "join needs at least one ADDR: the gossip address, HOST:PORT, of a member"},
		{"force-leave", 2, "force-leave needs NODE"},
		{"drain a b", 2, `drain takes one NODE, but got a second: "b"`},
		{"bench", 2, "bench needs what to measure: throughput, failover, overhead, kv, route or ring"},
		{"bench kv --sizes 1024,x", 2, "--sizes x: want numbers of bytes from 1 to 16777216, comma separated"},
		{"bench kv --sizes 16777217", 2, "--sizes 16777217: want numbers of bytes from 1 to 16777216, comma separated"},
		{"bench kv --conns 17", 2, "--conns 17: want 1 to 16"},
		{"bench kv --repeat 0", 2, "--repeat 0: want 1 to 1000"},
		{"bench kv --each 2h", 2, "--each 2h0m0s: want 1ms to 1m"},
		{"completion tcsh", 2, `completion for "tcsh": want bash, zsh or fish`},
		{"config check /nope.toml", 2, "read configuration: open /nope.toml: no such file or directory: name an existing file with --config"},
		{"model synth --preset 9t " + dir + "/m", 2, "flag --preset: "},
		{"model synth --type q9 " + dir + "/m", 2, "flag --type: "},
		{"model inspect " + dir + "/none.gguf", 1, "load model "},
		{"generate x --local " + dir + "/none.gguf", 1, "load model "},
		{"members --control " + none, 3, "ask the daemon at " + none + noDaemon},
		{"status --check --control " + none, 3, "ask the daemon at " + none + noDaemon},
		{"generate x --control " + none, 3, "ask the daemon at " + none + noDaemon},
		{"join a:1 --control " + none, 3, "join a:1: ask the daemon at " + none + noDaemon},
		{"keygen --out " + open, 1, "write secret " + open + ": it exists already: choose another name, or remove it if no ring uses it"},
		{agent("x"), 2, `agent takes no arguments, but got "x"`},
		{agent("--ring-bnid x"), 2, "kevlard agent has no flag --ring-bnid (did you mean --ring-bind?)"},
		{agent(""), 2, "ring.secret_file is not set: every node of a ring needs the same secret: make one with kevlard keygen --out FILE, copy it to each node and name it there"},
		{agent("--ring-secret-file " + dir + "/nope"), 2, "read the cluster secret: stat " + dir + "/nope: no such file or directory: make one with kevlard keygen --out " + dir + "/nope, or copy that of the ring"},
		{agent("--ring-secret-file " + open), 2, "read the cluster secret " + open + ": mode 0644 lets others read it: chmod 600 it"},
		{agent("--ring-secret-file " + short), 2, "read the cluster secret " + short + ": it does not hold 32 bytes in base64 or hex: make one with kevlard keygen"},
		{agent("--api-listen 0.0.0.0:80"), 2, `flag --api-listen: api.listen: "0.0.0.0:80" is reachable from other hosts, which needs API keys: set api.keys_file (kevlard keygen --api NAME makes a key), or listen on 127.0.0.1`},
		{agent("--log-level loud"), 2, `flag --log-level: log.level: "loud" is not allowed: want debug or info or warn or error`},
		{"agent --name n --ring-bind 127.0.0.1:1", 2, `flag --ring-bind: ring.bind: "127.0.0.1:1" is a loopback address, where no other host reaches this node: bind another one, or set ring.dev = true for a mesh on one machine`},
	} {
		t.Run(c.args, func(t *testing.T) {
			r := program(t, []string{"HOME=" + dir}, "", strings.Fields(c.args)...)
			line := strings.TrimSuffix(r.stderr, "\n")
			exact := line == "kevlard: "+c.want
			prefix := strings.HasSuffix(c.want, " ") && strings.HasPrefix(line, "kevlard: "+c.want)
			if r.code != c.code || !exact && !prefix {
				t.Errorf("exit %d, stderr %q\nwant %d, %q", r.code, line, c.code, "kevlard: "+c.want)
			}
			if strings.Contains(line, "\n") || r.stdout != "" {
				t.Errorf("stderr %q, stdout %q: want one line and nothing", line, r.stdout)
			}
		})
	}
}

func TestConfigVerbs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "k.toml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("[node]\nname = 'n'\n[kv]\nhigh_water = 1\n")
	r := program(t, nil, "", "config", "check", path)
	if r.code != 0 || r.stdout != path+": ok\n" || r.stderr != "kevlard: warning: "+path+":4: kv.high_water: has no effect yet\n" {
		t.Errorf("good file: %+v", r)
	}
	r = program(t, []string{"KEVLARD_NODE_ZONE=z"}, "", "config", "print", path, "--ring-name", "r")
	for _, want := range []string{"node.name", path + ":2", "env KEVLARD_NODE_ZONE", "flag --ring-name", "default"} {
		if r.code != 0 || !strings.Contains(r.stdout, want) {
			t.Errorf("print: want %q in %+v", want, r)
		}
	}
	write("[node]\nrole = 'x'\n[rnig]\n")
	r = program(t, nil, "", "config", "check", path)
	want := "kevlard: " + path + ":2: node.role: \"x\" is not allowed: want host or gateway\nkevlard: " + path + ":3: rnig: unknown table (did you mean ring?)\n"
	if r.code != 2 || r.stderr != want || r.stdout != "" {
		t.Errorf("bad file: %+v, want %q", r, want)
	}
	r = program(t, nil, "", "config", "check", path, "-o", "json")
	if r.code != 2 || r.stderr != "" || !strings.Contains(r.stdout, `"nearest": "ring"`) || !strings.Contains(r.stdout, `"ok": false`) {
		t.Errorf("bad file in JSON: %+v", r)
	}
}

func TestKeygen(t *testing.T) {
	one, two := program(t, nil, "", "keygen"), program(t, nil, "", "keygen")
	secret, err := parseSecret(one.stdout)
	if one.code != 0 || err != nil || len(secret) != secretBytes || one.stdout == two.stdout {
		t.Errorf("got %+v and %+v: %v", one, two, err)
	}
	path := filepath.Join(t.TempDir(), "s")
	if r := program(t, nil, "", "keygen", "--out", path); r.code != 0 || r.stdout != "" {
		t.Errorf("got %+v", r)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := readSecret(path); err != nil {
		t.Error(err)
	}
}

func TestVersion(t *testing.T) {
	r := program(t, nil, "", "-o", "json", "version")
	for _, key := range []string{`"version"`, `"commit"`, `"go"`, `"engine"`, `"transports"`} {
		if r.code != 0 || !strings.Contains(r.stdout, key) {
			t.Errorf("want %s in %+v", key, r)
		}
	}
	if r := program(t, nil, "", "version"); r.code != 0 || !strings.HasPrefix(r.stdout, "kevlard ") {
		t.Errorf("got %+v", r)
	}
}

func TestCompletion(t *testing.T) {
	for _, sh := range []string{"bash", "zsh", "fish"} {
		r := program(t, nil, "", "completion", sh)
		for _, want := range []string{"force-leave", "synth", "ring-secret-file"} {
			if r.code != 0 || !strings.Contains(r.stdout, want) {
				t.Errorf("%s: %q is missing, exit %d", sh, want, r.code)
			}
		}
		if strings.Contains(r.stdout, "engine process") {
			t.Errorf("%s: the hidden verb shows", sh)
		}
	}
}
