package api

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// deliveryOf asks the kernel; false if it does not know.
func deliveryOf(c net.Conn) (d delivery, ok bool) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return d, false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return d, false
	}
	asked := raw.Control(func(fd uintptr) {
		if d.waiting, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); err != nil {
			return
		}
		var info *unix.TCPInfo
		if info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			d.acked, d.trip = info.Bytes_acked, time.Duration(info.Rtt+4*info.Rttvar)*time.Microsecond
		}
	})
	return d, asked == nil && err == nil
}
