// Package loopback gives tests loopback addresses of their own, of which every port is
// free: a port that was free a moment ago may be another socket's now.
package loopback

import (
	"fmt"
	"hash/fnv"
	"os"
	"testing"
)

// IP returns an address of 127.0.0.0/8 that is this test's in this process, and another
// one for each name that is given. It is none of 127.0.0.0/16, where programs listen.
func IP(t testing.TB, name ...string) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%d %q %q", os.Getpid(), t.Name(), name) // never fails
	n := h.Sum32()
	return fmt.Sprintf("127.%d.%d.%d", 1+n%254, n>>8&0xff, 1+n>>16%254)
}
