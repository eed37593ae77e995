package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminalSize returns the size of the terminal that f is, ok = false if it is none. A
// terminal that does not tell has 80 by 24 characters.
func terminalSize(f *os.File) (columns, rows int, ok bool) {
	s, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, false
	}
	if s.Col == 0 || s.Row == 0 {
		return 80, 24, true
	}
	return int(s.Col), int(s.Row), true
}
