package main

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// passedTo starts kevlard with sockets as a service manager passes them.
func passedTo(t *testing.T, sockets []*os.File, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.Command("/bin/sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`, os.Args[0]}, args...)...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "LISTEN_FDS="+string(rune('0'+len(sockets))), "LISTEN_FDNAMES="+strings.Repeat(":api", len(sockets))[1:])
	cmd.ExtraFiles = sockets
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, &stderr
}

// TestPassedListener starts an agent to which the service manager passes the API's
// socket: a request that came before it ran is answered, and [api] listen is not used.
func TestPassedListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		resp, err := http.Get("http://" + l.Addr().String() + "/healthz")
		if err == nil {
			resp.Body.Close()
		}
		answered <- err
	}()
	dir := t.TempDir()
	if r := program(t, nil, "", "keygen", "--out", dir+"/secret"); r.code != 0 {
		t.Fatal(r.stderr)
	}
	listen, unused := listenFlags(t)
	cmd, stderr := passedTo(t, []*os.File{f}, append([]string{
		"agent", "--ring-dev", "--name", "n1", "--node-role", "gateway", "--data-dir", dir + "/data",
		"--ring-secret-file", dir + "/secret", "--control", dir + "/sock",
	}, listen...)...)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-answered:
		if err != nil {
			t.Error(err)
		}
	case err := <-ended:
		t.Fatalf("the agent ended: %v\n%s", err, stderr)
	}
	if c, err := net.Dial("tcp", unused); err == nil {
		c.Close()
		t.Errorf("it listens on %s too", unused)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the agent ended: %v\n%s", err, stderr)
	}
}

// TestPassedNonsense checks that what the agent cannot use is refused, with what to do.
func TestPassedNonsense(t *testing.T) {
	dir := t.TempDir()
	if r := program(t, nil, "", "keygen", "--out", dir+"/secret"); r.code != 0 {
		t.Fatal(r.stderr)
	}
	unix, err := net.Listen("unix", dir+"/api")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close()
	f, err := unix.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, c := range []struct {
		files []*os.File
		want  string
	}{
		{[]*os.File{f, f}, "passed 2 sockets: want one"},
		{[]*os.File{f}, "want one that listens on TCP"},
	} {
		cmd, stderr := passedTo(t, c.files, "agent", "--ring-dev", "--node-role", "gateway", "--data-dir", dir+"/data", "--ring-secret-file", dir+"/secret", "--control", dir+"/sock")
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != exitUsage || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("exit code %d, want %d; %q does not say %q", code, exitUsage, stderr, c.want)
		}
	}
}
