package kvstream

import (
	"sync"
	"testing"
)

func TestPoolIsBounded(t *testing.T) {
	p := NewPool(3 * minBuffer)
	if p.Get(0) != nil || p.Get(3*minBuffer+1) != nil || p.Get(1<<40) != nil {
		t.Error("a buffer of no bytes, or of more than there are")
	}
	small := p.Get(1)
	large := p.Get(minBuffer + 1) // takes twice as much
	if len(small) != 1 || len(large) != minBuffer+1 || p.Used() != 3*minBuffer {
		t.Fatalf("buffers of %d and %d bytes, %d in use", len(small), len(large), p.Used())
	}
	if p.Get(1) != nil {
		t.Error("a buffer of a full pool")
	}
	p.Put(small[:0])
	if b := p.Get(minBuffer); len(b) != minBuffer {
		t.Errorf("a buffer of %d bytes after one came back", len(b))
	}
	defer func() {
		if recover() == nil {
			t.Error("a buffer of somebody else was taken back")
		}
	}()
	p.Put(make([]byte, 100))
}

func TestPoolIsSafe(t *testing.T) {
	p := NewPool(1 << 20)
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 200 {
				b := p.Get(1 + (i*7919+w)%(300<<10))
				if b == nil {
					continue
				}
				b[0], b[len(b)-1] = byte(w), byte(w)
				if b[0] != byte(w) || b[len(b)-1] != byte(w) {
					t.Error("two have the same buffer")
				}
				p.Put(b)
			}
		})
	}
	all.Wait()
	if n := p.Used(); n != 0 {
		t.Errorf("%d bytes in use at the end", n)
	}
}
