package weights

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/kevlard/kevlard"
)

// TestSlowPeer wants one peer whose link takes nothing to keep no other from being served,
// and to be refused when too much waits for it.
func TestSlowPeer(t *testing.T) {
	m := synth(t, 1)
	synctest.Test(t, func(t *testing.T) {
		l := NewLibrary("", nil)
		l.Add(m)
		defer l.Close()
		stuck := make(chan struct{})
		s := NewServer("a", l, func(_ context.Context, to kevlard.NodeID, _, _ []byte) error {
			if to == "slow" {
				<-stuck
			}
			return nil
		}, 0, func(int) {})
		ask := func(from kevlard.NodeID) Answer {
			b, err := s.Answer(t.Context(), from, s.codec.encode(Request{Version: Version, Kind: SendChunk, Unit: m.Units[0].Digest}))
			if err != nil {
				t.Error(err)
				return Answer{}
			}
			a, err := s.codec.answer(SendChunk, b)
			if err != nil {
				t.Error(err)
			}
			return a
		}
		var all sync.WaitGroup
		for range serveOne {
			all.Go(func() {
				if a := ask("slow"); a.Refusal != "" {
					t.Errorf("refused: %+v", a)
				}
			})
		}
		synctest.Wait()
		served := make(chan Answer, 1)
		go func() { served <- ask("other") }()
		synctest.Wait()
		select {
		case a := <-served:
			if a.Refusal != "" {
				t.Errorf("refused: %+v", a)
			}
		default:
			t.Error("another peer is not served while one takes nothing")
		}
		if a := ask("slow"); a.Refusal != Busy || !strings.Contains(a.Text, "wait") {
			t.Errorf("one more for the slow peer: %+v, want busy", a)
		}
		close(stuck)
		all.Wait()
	})
}
