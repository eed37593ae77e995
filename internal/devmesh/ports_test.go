package devmesh

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
)

func TestPreflightNamesWhoHoldsAPort(t *testing.T) {
	for _, network := range []string{"tcp", "udp"} {
		t.Run(network, func(t *testing.T) {
			base, err := FreeBase(24000, 2)
			if err != nil {
				t.Fatal(err)
			}
			specs := []spec{{name: "node-1", ip: "127.0.0.11", base: base}, {name: "node-2", ip: "127.0.0.12", base: base}}
			if err := preflight(specs); err != nil {
				t.Fatalf("before: %v", err)
			}
			taken := specs[1].addr(1) // gossip of node-2
			stop := hold(t, network, taken)
			defer stop()
			err = preflight(specs)
			if err == nil {
				t.Fatalf("preflight did not see that %s is taken", taken)
			}
			for _, want := range []string{"node-2", "gossip", taken, fmt.Sprintf("pid %d", os.Getpid()), "--base-port"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			if next, err := FreeBase(base, 2); err != nil || next == base {
				t.Errorf("FreeBase gave %d, %v: want another base than %d", next, err, base)
			}
		})
	}
}

func hold(t *testing.T, network, addr string) (stop func() error) {
	t.Helper()
	if network == "udp" {
		c, err := net.ListenPacket(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		return c.Close
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	return l.Close
}
