//go:build !cgo || !linux

package gpu

import (
	"context"
	"fmt"

	"github.com/kevlard/kevlard/gpu/health"
)

// driver is never there: this build can't ask NVIDIA's driver.
type driver struct{}

func openDriver(string) (*driver, error) {
	return nil, fmt.Errorf("%w: this build can't ask it: rebuild with CGO_ENABLED=1", ErrNoDriver)
}

func (*driver) close() {}

func (*driver) version() string { return "" }

func (*driver) read() ([]health.Device, error) { return nil, nil }

func (*driver) events(context.Context, func(health.Xid)) {}

func (*driver) devices() []health.Device { return nil }
