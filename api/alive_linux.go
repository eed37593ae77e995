package api

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// unacknowledged is how many bytes the other side has not acknowledged; 0 if that is not
// known.
func unacknowledged(c net.Conn) int {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	if raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }) != nil || err != nil {
		return 0
	}
	return n
}
