package tcp

import (
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// setOptions prepares a connection of either side. Go has set TCP_NODELAY.
func setOptions(c *net.TCPConn, stall time.Duration) error {
	if err := c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount}); err != nil {
		return fmt.Errorf("set keep-alive: %w", err)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, func(fd int) error {
		// Without it the kernel would take megabytes that no cap, cancel or other
		// priority can reach any more.
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentBytes); err != nil {
			return fmt.Errorf("set TCP_NOTSENT_LOWAT: %w", err)
		}
		// A peer whose path has gone is found even if nothing more is written.
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(stall.Milliseconds())); err != nil {
			return fmt.Errorf("set TCP_USER_TIMEOUT: %w", err)
		}
		return nil
	})
}

func control(raw syscall.RawConn, f func(fd int) error) error {
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}
