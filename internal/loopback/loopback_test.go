package loopback

import (
	"net"
	"net/netip"
	"testing"
)

func TestIP(t *testing.T) {
	low := netip.MustParsePrefix("127.0.0.0/16")
	seen := map[string]bool{}
	for _, name := range [][]string{nil, {"a"}, {"b"}, {"a", "b"}, {"a b"}} {
		ip := IP(t, name...)
		if seen[ip] {
			t.Errorf("%q has the address of another name: %s", name, ip)
		}
		seen[ip] = true
		if again := IP(t, name...); again != ip {
			t.Errorf("%q has %s, then %s", name, ip, again)
		}
		if a, err := netip.ParseAddr(ip); err != nil || !a.IsLoopback() || low.Contains(a) {
			t.Errorf("%s: %v", ip, err)
		}
		l, err := net.Listen("tcp", ip+":9")
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
	t.Run("other test", func(t *testing.T) {
		if ip := IP(t); seen[ip] {
			t.Errorf("%s is another test's", ip)
		}
	})
}
