//go:build !linux

package api

import "net"

// deliveryOf is not known here.
func deliveryOf(net.Conn) (delivery, bool) { return delivery{}, false }
