package api

import (
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tellsCallers: the kernel says who connects, with all groups.
const tellsCallers = true

// callerOf asks the kernel who connected. The groups are those that the process had
// then; looking its number up later could find another process.
func callerOf(conn *net.UnixConn) (c caller, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return c, fmt.Errorf("reach the socket: %w", err)
	}
	var sockErr error
	err = raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, sockErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); sockErr != nil {
			return
		}
		c.uid, c.gid = cred.Uid, cred.Gid
		c.groups, sockErr = peerGroups(fd)
	})
	if err == nil {
		err = sockErr
	}
	if err != nil {
		return caller{}, fmt.Errorf("ask the kernel who connected: %w", err)
	}
	return c, nil
}

// peerGroups reads SO_PEERGROUPS, for which package unix has no function.
func peerGroups(fd uintptr) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(len(groups)) * 4
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return groups[:size/4], nil
		case errno == unix.ERANGE && size/4 > uint32(len(groups)) && size/4 <= maxGroups:
			groups = make([]uint32, size/4) // the kernel said how many there are
		default:
			return nil, errno
		}
	}
}
