package mesh

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// goroutines counts those that run code of the mesh or of libp2p.
func goroutines() int {
	n := 0
	for _, g := range strings.Split(stacks(), "\n\n") {
		if strings.Contains(g, "kevlard/mesh.(*") || strings.Contains(g, "libp2p") {
			n++
		}
	}
	return n
}

func sockets(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("no /proc/self/fd on this system to count descriptors")
	}
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range list {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(target, "socket:") {
			n++
		}
	}
	return n
}

// After losses, refusals, removals and the end of Run nothing is left over.
func TestNothingLeaks(t *testing.T) {
	until(t, func() bool { return goroutines() == 0 }) // those of earlier tests
	before := sockets(t)
	a, b, c := start(t, testConfig(t, "a")), start(t, testConfig(t, "b")), start(t, testConfig(t, "c"))
	odd := testConfig(t, "d")
	odd.Secret = []byte("another secret of the right size")
	d := start(t, odd)
	connect(t, a, b, c)
	d.SetPeers([]Address{a.at()})
	d.next(t, "refused")
	way := startProxy(t, b.Addr())
	steady, steadySockets := goroutines(), sockets(t)
	for range 5 {
		a.SetPeers([]Address{way.at(b)}) // moves b's link and removes c
		a.next(t, "up")
		way.cut()
		a.next(t, "up")
		a.SetPeers([]Address{b.at(), c.at()})
		a.next(t, "up")
		a.next(t, "up")
	}
	// d goes on dialling, so what belongs to an attempt of its comes and goes.
	way.cut()
	until(t, func() bool { return goroutines() <= steady+4 && sockets(t) <= steadySockets+3 })
	for _, n := range []*testNode{a, b, c, d} {
		n.stop(t)
	}
	// Run has returned, so its own are gone now; libp2p's may take a moment more, and so
	// may what a context's end has started: all that is left to do there is nothing.
	for _, g := range strings.Split(stacks(), "\n\n") {
		if strings.Contains(g, "created by context.(*afterFuncCtx)") {
			continue
		}
		if strings.Contains(g, "mesh.(*Mesh)") || strings.Contains(g, "mesh.(*link)") || strings.Contains(g, "mesh.(*pair)") {
			t.Errorf("left after Run:\n%s", g)
		}
	}
	way.listener.Close()
	way.cut()
	way.work.Wait()
	until(t, func() bool { return goroutines() == 0 && sockets(t) <= before })
}
