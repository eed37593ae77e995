package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openDataDir makes the data directory where it is missing and keeps other daemons off
// it until the file that it returns is closed, or the process has ended. Two daemons with
// one directory would be one peer with two names: its node key is in it.
func openDataDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w: set [node] data_dir to a place that this user may write", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the data directory: %w: give it to the user that kevlard runs as (chown -R), or set another [node] data_dir", err)
	}
	// Of the directory itself, so that nothing more has to be written. A file system
	// that has no such locks (NFS) has no guard: refusing to run would be worse.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		f.Close() // opened for reading: there is nothing to lose
		return nil, fmt.Errorf("data directory %s: another daemon runs with it (fuser -v %s shows which): stop that one, or set another [node] data_dir", dir, dir)
	}
	return f, nil
}
