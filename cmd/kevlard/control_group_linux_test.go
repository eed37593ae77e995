package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestControlGroupVerbs runs the program as real users, beside a socket with a group.
func TestControlGroupVerbs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it starts programs as other users, which takes root")
	}
	const group = 54321
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} { // the test's own: others may pass
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	exe := filepath.Join(dir, "kevlard")
	copyProgram(t, exe)
	s := script()
	s.status.Node, s.status.Ready = "node-1", true
	socket := s.controlFor(t, filepath.Join(dir, "k.sock"), strconv.Itoa(group))
	as := func(who *syscall.Credential, args ...string) result {
		t.Helper()
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(t.Context(), exe, append(args, "--control", socket)...)
		cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = []string{asProgram + "=1"}, "/", &stdout, &stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who}
		err := cmd.Run()
		if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
			t.Fatal(err)
		}
		return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	}
	member := &syscall.Credential{Uid: 1234, Gid: 1234, Groups: []uint32{group}}
	stranger := &syscall.Credential{Uid: 1234, Gid: 1234}
	for _, c := range []struct {
		who    *syscall.Credential
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{member, []string{"status"}, exitDone, "node-1", ""},
		{member, []string{"members"}, exitDone, "node-1", ""},
		{member, []string{"status", "--check"}, exitDone, "node-1: ready\n", ""},
		{member, []string{"drain"}, exitRefused, "", "may look here and change nothing"},
		{member, []string{"join", "10.0.0.1:7946"}, exitRefused, "", "may look here and change nothing"},
		{member, []string{"keys", "list"}, exitRefused, "", "may look here and change nothing"},
		{stranger, []string{"status"}, exitRefused, "", "may not open the socket"},
		{stranger, []string{"drain"}, exitRefused, "", "may not open the socket"},
		{stranger, []string{"status", "--check"}, exitRefused, "", "may not open the socket"},
		{nil, []string{"status"}, exitDone, "node-1", ""},
	} {
		r := as(c.who, c.args...)
		if r.code != c.code || !strings.Contains(r.stdout, c.stdout) || !strings.Contains(r.stderr, c.stderr) {
			t.Errorf("%v as %+v: %+v\nwant exit %d, %q, %q", c.args, c.who, r, c.code, c.stdout, c.stderr)
		}
	}
}

// copyProgram puts the test's binary where every user may run it.
func copyProgram(t *testing.T, path string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Close()); err != nil {
		t.Fatal(err)
	}
}
