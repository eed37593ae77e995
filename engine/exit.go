package engine

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"
)

// ExitNoMemory is the exit code of an engine that an allocation failed in: its
// machine is short of memory, and its work is not to blame.
const ExitNoMemory = 12

// ExitCode returns the code that a process should exit with after Serve returned err.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrNoMemory):
		return ExitNoMemory
	}
	return 1
}

// ExitStatus says how an engine process ended.
type ExitStatus struct {
	Code      int            // exit code; -1 when a signal ended it
	Signal    syscall.Signal // 0 when it exited by itself
	Poisonous bool           // the work may be to blame: an abort, a fault or an error exit, not a kill or a want of memory
	Message   string         // its last stderr lines
}

// String is a short cause for logs.
func (e ExitStatus) String() string {
	s := fmt.Sprintf("exit code %d", e.Code)
	if e.Signal != 0 {
		s = "signal " + e.Signal.String()
	}
	if e.Message != "" {
		s += ": " + e.Message
	}
	return s
}

// exitStatus reads what the kernel says of an ended process.
func exitStatus(state *os.ProcessState, message string) ExitStatus {
	e := ExitStatus{Code: state.ExitCode(), Message: message}
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		e.Signal = w.Signal()
	}
	switch e.Signal {
	case syscall.SIGABRT, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE:
		e.Poisonous = true
	case 0:
		e.Poisonous = e.Code != 0 && e.Code != ExitNoMemory
	}
	return e
}

// forward logs a child's stderr line by line until it ends and returns the last
// lines joined. A child that floods is cut at maxLines per logWindow.
func forward(r io.Reader, log *slog.Logger, now func() time.Time) string {
	var tail []string
	window, logged, dropped := now(), 0, 0
	in := bufio.NewReaderSize(r, maxLine)
	for {
		line, long, err := in.ReadLine()
		if err != nil {
			break
		}
		text := strings.ToValidUTF8(string(line), "\uFFFD")
		for long && err == nil { // the rest of a long line is skipped
			_, long, err = in.ReadLine()
		}
		if t := now(); t.Sub(window) >= logWindow {
			if dropped > 0 {
				log.Warn("engine logs too much", "dropped", dropped)
			}
			window, logged, dropped = t, 0, 0
		}
		if logged++; logged <= maxLines {
			log.Info("engine", "line", text)
		} else {
			dropped++
		}
		if tail = append(tail, text); len(tail) > maxTail {
			tail = tail[1:]
		}
	}
	return strings.Join(tail, "\n")
}
