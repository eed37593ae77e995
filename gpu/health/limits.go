package health

import "time"

// The bounds of the package.
//
//	bound       what is bounded                          when it is full
//	MaxDevices  devices of a reading that are judged     the others are left out
//	MaxXids     Xids of a reading that are looked at     the others are left out; the first ones matter
//	maxLine     bytes of a kernel line that are parsed   the rest is cut off
//	maxText     bytes of an Xid's text that are kept     the rest is cut off
const (
	MaxDevices = 64
	MaxXids    = 256
	maxLine    = 1024
	maxText    = 200
)

// Hysteresis.
const (
	// settleIn is how many readings in a row must show something that can pass by itself
	// before it counts, and settleOut how long it must be gone before it counts no more.
	settleIn  = 3
	settleOut = 30 * time.Second
	// xidFades is how long an Xid that only asks for a reset when convenient counts.
	xidFades = time.Hour
	// heatMargin is how far below the temperature at which a GPU slows itself down routes
	// are taken away, and coolMargin how far it must fall before they come back.
	heatMargin = 2
	coolMargin = 7
)
