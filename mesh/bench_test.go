package mesh

import (
	"testing"
)

// BenchmarkHop is the round trip of one 8 KiB frame: two activation hops.
func BenchmarkHop(b *testing.B) {
	back := make(chan struct{}, 1)
	ca, cb := testConfig(b, "a"), testConfig(b, "b")
	ca.Handler.Data = func(Peer, []byte, []byte) { back <- struct{}{} }
	var echo *testNode
	ready := make(chan struct{})
	cb.Handler.Data = func(from Peer, head, body []byte) {
		<-ready
		if err := echo.Data(from.Node, head, body); err != nil {
			b.Error(err)
		}
	}
	a := start(b, ca)
	echo = start(b, cb)
	close(ready)
	connect(b, a, echo)
	head, body := make([]byte, 64), make([]byte, 8<<10)
	b.SetBytes(2 * int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if err := a.Data("b", head, body); err != nil {
			b.Fatal(err)
		}
		<-back
	}
}

// BenchmarkThroughput streams frames one way with a window of 64 under way.
func BenchmarkThroughput(b *testing.B) {
	for name, size := range map[string]int{"8KiB": 8 << 10, "256KiB": 256 << 10} {
		b.Run(name, func(b *testing.B) {
			credit := make(chan struct{}, 64)
			cfg := testConfig(b, "b")
			cfg.Handler.Data = func(Peer, []byte, []byte) { <-credit }
			a, to := start(b, testConfig(b, "a")), start(b, cfg)
			connect(b, a, to)
			head, body := make([]byte, 64), make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				credit <- struct{}{}
				if err := a.Data("b", head, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCall is the round trip of a small call.
func BenchmarkCall(b *testing.B) {
	cfg := testConfig(b, "b")
	a, to := start(b, testConfig(b, "a")), start(b, cfg)
	connect(b, a, to)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.Call(b.Context(), "b", "m", nil); err == nil {
			b.Fatal("a node without handler answered")
		}
	}
}
