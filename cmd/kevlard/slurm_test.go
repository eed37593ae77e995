package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSlurm runs the scripts of deploy/slurm as Slurm does, without a PATH, against an
// agent: a prolog drains the node, the health check does not complain of that, the epilog
// of the last job brings the node back. A node without a daemon keeps no job waiting.
func TestSlurm(t *testing.T) {
	model := fairyFile(t)
	socket, _ := startAgent(t, "--models-dirs", filepath.Dir(model), "--models-assign", "fairy:0-8")
	dir := t.TempDir()
	script := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	control := socket
	kevlard := script("kevlard", asProgram+`=1 exec "`+os.Args[0]+`" "$@"`)
	scontrol := script("scontrol", `echo "$@" >>"`+dir+`/scontrol.log"`)
	jobs := filepath.Join(dir, "jobs")
	squeue := script("squeue", "exec /bin/cat "+jobs)
	if err := os.WriteFile(jobs, []byte("7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	slurm := func(name string) {
		t.Helper()
		cmd := exec.Command("../../deploy/slurm/" + name)
		cmd.Env = []string{"KEVLARD=" + kevlard, "KEVLARD_CONTROL=" + control, "SCONTROL=" + scontrol, "SQUEUE=" + squeue, "SLURM_JOB_ID=7", "SLURMD_NODENAME=n1"}
		began := time.Now()
		out, err := cmd.CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		t.Logf("%s took %v", name, time.Since(began).Round(time.Millisecond))
	}
	complaints := func() string {
		text, _ := os.ReadFile(dir + "/scontrol.log")
		return string(text)
	}
	check := func(want string) func() bool {
		return func() bool {
			r := program(t, nil, "", "status", "--check", "--control", socket)
			return strings.Contains(r.stdout, want)
		}
	}
	eventually(t, check("n1: ready"))
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
	if text := complaints(); text != "" {
		t.Errorf("the health check drained the node in Slurm: %s", text)
	}
	control = dir + "/no.sock"
	slurm("prolog")
	slurm("epilog")
	slurm("healthcheck")
	if text := complaints(); !strings.HasPrefix(text, "update NodeName=n1 State=DRAIN Reason=kevlard: ") {
		t.Errorf("without a daemon the health check says to Slurm: %q", text)
	}
}
