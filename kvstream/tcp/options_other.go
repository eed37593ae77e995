//go:build !linux

package tcp

import (
	"fmt"
	"net"
	"time"
)

// setOptions prepares a connection of either side. Go has set TCP_NODELAY. The bound
// on unsent bytes and on unacknowledged ones is Linux's.
func setOptions(c *net.TCPConn, _ time.Duration) error {
	if err := c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount}); err != nil {
		return fmt.Errorf("set keep-alive: %w", err)
	}
	return nil
}
