package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSlurm runs the scripts of deploy/slurm as Slurm does, without a PATH, against an
// agent: a prolog drains the node, the health check does not complain of that, nor of what
// somebody else says of the node, and takes back what it has drained itself, the epilog
// of the last job brings the node back, unless the next one's prolog comes meanwhile, or a
// GPU has failed: then the health check does complain. A node without a daemon keeps no
// job waiting.
func TestSlurm(t *testing.T) {
	gpus := filepath.Join(t.TempDir(), "gpus.jsonl")
	reading := func(kernel string) {
		f, err := os.OpenFile(gpus, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(`{"devices":[{"uuid":"GPU-0","pci":"0000:3b:00.0"}],"kernel":["` + kernel + `"]}` + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	reading("")
	t.Setenv("KEVLARD_GPU_RECORDING", gpus)
	model := fairyFile(t)
	socket, _ := startAgent(t, "--models-dirs", filepath.Dir(model), "--models-assign", "fairy:0-8")
	dir := t.TempDir()
	script := func(name, text string) string { return shellScript(t, filepath.Join(dir, name), text) }
	control := socket
	kevlard := script("kevlard", asProgram+`=1 exec "`+os.Args[0]+`" "$@"`)
	scontrol := script("scontrol", `[ "$1" = update ] || exec /bin/cat "`+dir+`/node"
echo "$@" >>"`+dir+`/scontrol.log"`)
	node := func(text string) {
		t.Helper()
		if err := os.WriteFile(dir+"/node", []byte("NodeName=n1 "+text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	jobs := filepath.Join(dir, "jobs")
	// It may start the next job's prolog, and answers when that is done or waits.
	squeue := script("squeue", `[ -e "`+dir+`/next" ] && {
	SLURM_JOB_ID=8 ../../deploy/slurm/prolog >/dev/null 2>&1 &
	/usr/bin/timeout 2 /usr/bin/tail --pid=$! -f /dev/null
}
exec /bin/cat "`+jobs+`"`)
	if err := os.WriteFile(jobs, []byte("7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	slurm := func(name string, says ...string) {
		t.Helper()
		cmd := exec.Command("../../deploy/slurm/" + name)
		cmd.Env = []string{"KEVLARD=" + kevlard, "KEVLARD_CONTROL=" + control, "SCONTROL=" + scontrol, "SQUEUE=" + squeue, "SLURM_JOB_ID=7", "SLURMD_NODENAME=n1", "KEVLARD_SLURM_RUN=" + dir}
		began := time.Now()
		out, err := cmd.CombinedOutput()
		if err != nil || len(out) > 0 != (len(says) > 0) {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		for _, s := range says {
			if !strings.Contains(string(out), s) {
				t.Errorf("%s says %q: want %q", name, out, s)
			}
		}
		t.Logf("%s took %v", name, time.Since(began).Round(time.Millisecond))
	}
	complaints := func() string {
		text, _ := os.ReadFile(dir + "/scontrol.log")
		return string(text)
	}
	check := func(want string) func() bool {
		return func() bool {
			for {
				r := program(t, nil, "", "status", "--check", "--control", socket)
				if !strings.Contains(r.stdout, "did not answer") { // a busy machine
					return strings.Contains(r.stdout, want)
				}
			}
		}
	}
	eventually(t, check("n1: ready"))
	node("State=IDLE+DRAIN Reason=kevlard: n1: not ready: no route [root@now]")
	slurm("healthcheck")
	if text := complaints(); text != "update NodeName=n1 State=RESUME\n" {
		t.Errorf("of a node that it has drained, and that is ready now, the health check says to Slurm: %q", text)
	}
	if err := os.Remove(dir + "/scontrol.log"); err != nil {
		t.Fatal(err)
	}
	node("State=IDLE+DRAIN Reason=a fan is broken [root@now]")
	slurm("healthcheck")
	node("State=IDLE ThreadsPerCore=1")
	slurm("healthcheck")
	slurm("prolog")
	eventually(t, check("draining"))
	slurm("healthcheck")
	if err := os.WriteFile(jobs, []byte("7\n8\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	slurm("epilog")
	if !check("draining")() {
		t.Error("the epilog brought the node back although another job runs on it")
	}
	if err := os.WriteFile(jobs, []byte("7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	slurm("epilog")
	eventually(t, check("n1: ready"))
	// The epilog has heard that no other job is here when the next one comes.
	slurm("prolog")
	eventually(t, check("draining"))
	if err := os.WriteFile(dir+"/next", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	slurm("epilog")
	eventually(t, check("draining"))
	if err := os.Remove(dir + "/next"); err != nil {
		t.Fatal(err)
	}
	slurm("epilog")
	eventually(t, check("n1: ready"))
	if text := complaints(); text != "" {
		t.Errorf("the health check drained the node in Slurm: %s", text)
	}
	slurm("prolog")
	eventually(t, check("draining"))
	reading("NVRM: Xid (PCI:0000:3b:00): 48, pid=1, name=job, DBE")
	eventually(t, check("Xid 48"))
	slurm("epilog", "exit code 5", "drains on by itself", "Xid 48")
	if !check("draining: no new sessions are taken: GPU 0")() {
		t.Error("the epilog brought a node back whose GPU has failed")
	}
	slurm("healthcheck")
	if text := complaints(); !strings.HasPrefix(text, "update NodeName=n1 State=DRAIN Reason=kevlard: ") || !strings.Contains(text, "Xid 48") {
		t.Errorf("of a failed GPU the health check says to Slurm: %q", text)
	}
	if err := os.Remove(dir + "/scontrol.log"); err != nil {
		t.Fatal(err)
	}
	control = dir + "/no.sock"
	slurm("prolog")
	slurm("epilog")
	slurm("healthcheck")
	if text := complaints(); !strings.HasPrefix(text, "update NodeName=n1 State=DRAIN Reason=kevlard: ask the daemon at ") {
		t.Errorf("without a daemon the health check says to Slurm: %q", text)
	}
	if err := os.Remove(dir + "/scontrol.log"); err != nil {
		t.Fatal(err)
	}
	node("State=IDLE+DRAIN Reason=a fan is broken [root@now]")
	slurm("healthcheck")
	if text := complaints(); text != "" {
		t.Errorf("of a node that somebody else has drained the health check says to Slurm: %q", text)
	}
}

// shellScript writes an executable script and returns its path.
func shellScript(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSlurmAsksAgain: one second in which the daemon does not answer drains no node of Slurm.
func TestSlurmAsksAgain(t *testing.T) {
	for name, c := range map[string]struct {
		silent int // checks that get no answer
		then   string
		code   string
		tries  int
		drains string
	}{
		"busy for a moment":         {2, "n1: ready", "0", 3, ""},
		"busy, and drained":         {1, "n1: not ready: draining: no new sessions are taken", "1", 2, ""},
		"busy, and not ready":       {1, "n1: not ready: no engine", "1", 2, "no engine"},
		"it does not answer at all": {9, "", "1", 3, "did not answer"},
		"not ready":                 {0, "n1: not ready: no engine", "1", 1, "no engine"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			script := func(name, text string) string { return shellScript(t, filepath.Join(dir, name), text) }
			asked := filepath.Join(dir, "asked")
			kevlard := script("kevlard", fmt.Sprintf(`echo "$*" >>%[1]s
if [ $(/usr/bin/wc -l <%[1]s) -le %d ]; then echo 'not ready: the daemon did not answer within 900ms'; exit 1; fi
echo '%s'; exit %s`, asked, c.silent, c.then, c.code))
			cmd := exec.Command("../../deploy/slurm/healthcheck")
			cmd.Env = []string{"KEVLARD=" + kevlard, "SCONTROL=" + script("scontrol", `[ "$1" = show ] || echo "$@" >>`+dir+"/scontrol.log"), "SLURMD_NODENAME=n1"}
			if out, err := cmd.CombinedOutput(); err != nil || len(out) != 0 {
				t.Errorf("%v: %s", err, out)
			}
			text, err := os.ReadFile(asked)
			if err != nil || string(text) != strings.Repeat("status --check\n", c.tries) {
				t.Errorf("asked %q, %v", text, err)
			}
			told, _ := os.ReadFile(dir + "/scontrol.log") // none: nothing was told
			if (len(told) > 0) != (c.drains != "") || !strings.Contains(string(told), c.drains) {
				t.Errorf("told Slurm %q, want %q", told, c.drains)
			}
		})
	}
}
