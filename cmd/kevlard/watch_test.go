package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/kevlard/kevlard/daemon/report"
)

// terminal is a pseudo-terminal, and what was written to it.
type terminal struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	chunks chan string
	seen   string // not yet part of a picture
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	x := &terminal{t: t, master: master, slave: slave, chunks: make(chan string, 1024)}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			if err != nil {
				close(x.chunks) // the last process on it has ended, or the test has
				return
			}
			x.chunks <- string(buf[:n])
		}
	}()
	return x
}

func (x *terminal) resize(columns, rows uint16) {
	x.t.Helper()
	if err := unix.IoctlSetWinsize(int(x.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}); err != nil {
		x.t.Fatal(err)
	}
}

// picture waits for a whole picture that is as wanted, and returns how it begins and its lines.
func (x *terminal) picture(want func(lines []string) bool) (begin string, lines []string) {
	x.t.Helper()
	limit := time.After(time.Minute)
	for {
		for {
			text, rest, ok := strings.Cut(x.seen, clearBelow)
			if !ok {
				break
			}
			x.seen = rest
			begin = home
			if strings.HasPrefix(text, clearAll) {
				begin = clearAll
			}
			lines = strings.Split(strings.TrimSuffix(strings.TrimPrefix(text, begin), "\r\n"), clearLine+"\r\n")
			lines[len(lines)-1] = strings.TrimSuffix(lines[len(lines)-1], clearLine)
			if want(lines) {
				return begin, lines
			}
		}
		select {
		case text, ok := <-x.chunks:
			if !ok {
				x.t.Fatalf("the program ended; last it wrote %q", x.seen)
			}
			x.seen += text
		case <-limit:
			x.t.Fatalf("no such picture within a minute; the last began with %q: %q", begin, lines)
		}
	}
}

// TestWatchOnTerminal runs the program on a terminal: it draws in place, what fits, also
// when the terminal's size changes, and ends with 130 at Ctrl-C.
func TestWatchOnTerminal(t *testing.T) {
	s := script()
	for i := range 30 {
		s.members.Nodes = append(s.members.Nodes, report.Member{Name: fmt.Sprintf("nöde-%d", i), Role: "host", State: "alive", Reason: strings.Repeat("ö", 100)})
	}
	socket := s.control(t)
	x := newTerminal(t)
	x.resize(80, 50)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.Command(self, "members", "--watch", "--control", socket)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = x.slave, x.slave, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill() // if the test fails
	fits := func(lines []string, columns int) bool {
		for _, l := range lines {
			if utf8.RuneCountInString(l) > columns {
				return false
			}
		}
		return true
	}
	begin, lines := x.picture(func([]string) bool { return true })
	if begin != clearAll || len(lines) != 32 || !strings.Contains(lines[1], "node-1 *") || !fits(lines, 80) || fits(lines, 79) {
		t.Errorf("the first picture begins with %q: %q", begin, lines)
	}
	begin, lines = x.picture(func([]string) bool { return true })
	if begin != home || len(lines) != 32 {
		t.Errorf("the second picture begins with %q: %q", begin, lines)
	}
	x.resize(20, 6)
	_, lines = x.picture(func(lines []string) bool { return len(lines) < 32 })
	if len(lines) != 5 || lines[4] != "... 28 lines more" || !fits(lines, 20) {
		t.Errorf("on 20 by 6 characters: %q", lines)
	}
	if _, err := x.master.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // ExitCode says it
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted || stderr.Len() > 0 {
		t.Errorf("after Ctrl-C: exit %d, stderr %q", code, stderr.String())
	}
}

// until is a writer that ends a context with the nth write.
type until struct {
	bytes.Buffer
	left int
	end  func(error)
}

func (u *until) Write(b []byte) (int, error) {
	if u.left--; u.left == 0 {
		u.end(errInterrupted)
	}
	return u.Buffer.Write(b)
}

// TestWatchElsewhere: what is no terminal gets one picture after the other, and no
// control sequences; so does JSON.
func TestWatchElsewhere(t *testing.T) {
	socket := script().control(t)
	for verb, want := range map[string]string{
		"members": "NAME", "topology": "fairy", "sessions": "SESSION", "members -o json": `"ring": "default"`, "topology -o json": `"models"`,
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		out := &until{left: 2, end: cancel}
		var stderr strings.Builder
		code := run(ctx, append(strings.Fields(verb), "--watch", "--control", socket), nil, nil, out, &stderr)
		if text := out.String(); code != exitInterrupted || stderr.Len() > 0 || strings.Count(text, want) != 2 || strings.Contains(text, "\x1b") {
			t.Errorf("%s --watch: exit %d, stderr %q, stdout %q", verb, code, stderr.String(), text)
		}
	}
}

// TestWatchedSessionsAreMissing: who did not answer is part of the picture.
func TestWatchedSessionsAreMissing(t *testing.T) {
	s := script()
	s.sessions.Unreachable = []string{"node-9"}
	ctx, cancel := context.WithCancelCause(t.Context())
	out := &until{left: 1, end: cancel}
	var stderr strings.Builder
	code := run(ctx, []string{"sessions", "--all", "--watch", "--control", s.control(t)}, nil, nil, out, &stderr)
	if code != exitInterrupted || stderr.Len() > 0 || !strings.Contains(out.String(), "no answer from node-9") {
		t.Errorf("exit %d, stderr %q, stdout %q", code, stderr.String(), out.String())
	}
	if r := program(t, nil, "", "sessions", "--all", "--control", s.control(t)); r.code != 0 || !strings.Contains(r.stderr, "no answer from node-9") || strings.Contains(r.stdout, "node-9") {
		t.Errorf("without --watch: exit %d, %q, %q", r.code, r.stderr, r.stdout)
	}
}

// TestWatchedDaemonEnds: pictures go on without a daemon, and say so.
func TestWatchedDaemonEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	out := &until{left: 2, end: cancel}
	var stderr strings.Builder
	if code := run(ctx, []string{"members", "--watch", "--control", t.TempDir() + "/none.sock"}, nil, nil, out, &stderr); code != exitInterrupted {
		t.Errorf("exit %d, stderr %q", code, stderr.String())
	}
	if n := strings.Count(out.String(), "no daemon answers"); n != 2 {
		t.Errorf("said %d times that there is no daemon: %q", n, out.String())
	}
}
