package api

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// ControlListener is a control socket that waits for callers.
type ControlListener struct {
	*net.UnixListener
	path string
	info os.FileInfo
	door doorkeeper
}

// ListenControl listens on a unix socket that only its owner may use (0600), or, with a
// group, its members too (0660), who may look and change nothing. It takes the place of
// a socket that no daemon answers on any more, and never that of anything else.
func ListenControl(path, group string) (*ControlListener, error) {
	door, err := newDoorkeeper(group)
	if err != nil {
		return nil, fmt.Errorf("control socket %s: %w", path, err)
	}
	if err := checkSocketPlace(path); err != nil {
		return nil, fmt.Errorf("control socket %s: %w", path, err)
	}
	// It is made under another name and renamed once its mode is right, so that
	// nobody can connect before, and readers see the old socket or the new one.
	var random [4]byte
	rand.Read(random[:])
	hidden := filepath.Join(filepath.Dir(path), ".k"+hex.EncodeToString(random[:]))
	if n := max(len(path), len(hidden)); n > maxSocketPath {
		return nil, fmt.Errorf("control socket %s: the path has %d bytes, the kernel takes %d: choose a shorter one", path, n, maxSocketPath)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("control socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // it would remove the name it was made under
	if err := errors.Join(door.hang(hidden), os.Rename(hidden, path)); err != nil {
		return nil, errors.Join(fmt.Errorf("control socket %s: %w", path, err), l.Close(), os.Remove(hidden))
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("control socket %s: %w", path, err), l.Close())
	}
	return &ControlListener{UnixListener: l, path: path, info: info, door: door}, nil
}

// checkSocketPlace refuses a path that holds something worth keeping.
func checkSocketPlace(path string) error {
	if _, err := os.Stat(filepath.Dir(path)); errors.Is(err, fs.ErrNotExist) {
		return errors.New("its directory does not exist: make it, or choose another path")
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("there is something that is not a socket: choose another path, or remove it")
	}
	conn, err := net.DialTimeout("unix", path, probeTimeout)
	switch {
	case err == nil:
		conn.Close()
		return errors.New("another daemon answers on it: stop that one, or choose another path")
	case errors.Is(err, syscall.ECONNREFUSED): // nobody listens any more
		return nil
	}
	// A daemon may be too busy to answer, or another user's.
	return fmt.Errorf("there is a socket, and whether a daemon still listens is not clear: %w: stop that daemon, or remove the socket", err)
}

// Addr returns the path that clients use.
func (l *ControlListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close implements net.Listener. It removes the socket, unless another daemon has taken
// the place by then.
func (l *ControlListener) Close() error {
	err := l.UnixListener.Close()
	if info, statErr := os.Lstat(l.path); statErr == nil && os.SameFile(info, l.info) {
		err = errors.Join(err, os.Remove(l.path))
	}
	return err
}
