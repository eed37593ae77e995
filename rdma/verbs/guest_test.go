package verbs

import (
	"os"
	"testing"
)

// loaded returns the library and its devices, or skips where there are none. In the
// guest RDMA_REQUIRED makes that a failure.
func loaded(t testing.TB) (*Library, []Device) {
	t.Helper()
	miss := t.Skipf
	if os.Getenv("RDMA_REQUIRED") != "" {
		miss = t.Fatalf
	}
	l, err := Load()
	if err != nil {
		miss("needs RDMA (make test-rdma): %v", err)
	}
	d, err := l.Devices()
	if err != nil || len(d) == 0 {
		miss("needs RDMA devices (make test-rdma): %v, %v", d, err)
	}
	return l, d
}

func TestDevices(t *testing.T) {
	_, devices := loaded(t)
	for _, d := range devices {
		t.Logf("%+v", d)
	}
}
