package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// maxOutput bounds what is kept of a command's output: the start of it.
	maxOutput = 1 << 20

	// commandWithin bounds a command: a first build takes minutes.
	commandWithin = 15 * time.Minute

	// stopWithin bounds how long a background command may take to end after Ctrl-C.
	stopWithin = time.Minute

	// closeWithin bounds how long bash may take to end when nothing is left to do.
	closeWithin = 5 * time.Second
)

// shell is one bash that runs one command after another, so that a directory or a
// variable stays for the next. Each command has its output in a file of its own.
type shell struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	status *bufio.Reader // a line with a number from each command
	pipe   *os.File
	dir    string // of the output files
	n      int
}

func newShell(ctx context.Context, dir string) (*shell, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close() // bash has its own
	cmd := exec.CommandContext(ctx, "bash", "--noprofile", "--norc")
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.ExtraFiles = []*os.File{w} // number 3 there
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start bash in %s: %w", dir, err), r.Close())
	}
	s := &shell{cmd: cmd, in: in, status: bufio.NewReader(r), pipe: r}
	if s.dir, err = os.MkdirTemp("", "docrun-"); err == nil {
		// Each command its own process group, as at a terminal, so that Ctrl-C has a target.
		_, err = fmt.Fprintln(in, "set -m")
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// number waits for a number from bash.
func (s *shell) number(within time.Duration) (int, error) {
	if err := s.pipe.SetReadDeadline(time.Now().Add(within)); err != nil {
		return 0, err
	}
	line, err := s.status.ReadString('\n')
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, fmt.Errorf("not done within %s", within)
	}
	if err != nil {
		return 0, fmt.Errorf("the shell has ended: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(line))
}

// start writes the command for bash; then says how its status gets back.
func (s *shell) start(command, then string) (output string, err error) {
	s.n++
	output = filepath.Join(s.dir, fmt.Sprint(s.n))
	_, err = fmt.Fprintf(s.in, "{ %s\n} </dev/null >%s 2>&1 3>&- %s\n", command, output, then)
	return output, err
}

// run runs a command and returns its exit code and output.
func (s *shell) run(command string) (code int, output string, err error) {
	path, err := s.start(command, "; echo $? >&3")
	if err != nil {
		return 0, "", err
	}
	code, err = s.number(commandWithin)
	return code, read1(path), err
}

// job is a command in the background.
type job struct {
	shell  *shell
	pid    int // and process group
	output string
}

func (s *shell) background(command string) (job, error) {
	path, err := s.start(command, "& echo $! >&3")
	if err != nil {
		return job{}, err
	}
	pid, err := s.number(commandWithin)
	return job{s, pid, path}, err
}

// running tells whether the job has not ended.
func (j job) running() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", j.pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// interrupt is Ctrl-C; it returns the exit code.
func (j job) interrupt() (int, error) {
	if err := syscall.Kill(-j.pid, syscall.SIGINT); err != nil && !errors.Is(err, syscall.ESRCH) {
		return 0, err
	}
	if _, err := fmt.Fprintf(j.shell.in, "wait %d; echo $? >&3\n", j.pid); err != nil {
		return 0, err
	}
	return j.shell.number(stopWithin)
}

// close ends bash, with force if it still waits for a command.
func (s *shell) close() error {
	err := s.in.Close()
	kill := time.AfterFunc(closeWithin, func() { _ = s.cmd.Process.Kill() }) // it may just have ended
	defer kill.Stop()
	if waited := s.cmd.Wait(); err == nil && s.cmd.ProcessState == nil {
		err = waited // a last command that failed is no error here
	}
	return errors.Join(err, s.pipe.Close(), os.RemoveAll(s.dir))
}

// read1 returns the start of a file, or why it cannot be read.
func read1(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxOutput))
	if err != nil {
		return err.Error()
	}
	return string(text)
}
