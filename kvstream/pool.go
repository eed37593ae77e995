package kvstream

import (
	"fmt"
	"math/bits"
	"sync"
)

// Pool hands out buffers for pieces on their way, up to a bound. It may be used by
// any goroutine.
type Pool struct {
	limit int64
	idle  [bits.UintSize]sync.Pool // of *[]byte, by the logarithm of their size

	mu   sync.Mutex
	used int64 // bytes of the buffers handed out
}

// NewPool returns a pool of which at most limit bytes are in use at a time.
func NewPool(limit int64) *Pool { return &Pool{limit: limit} }

// Get returns a buffer of length n > 0 with arbitrary content, or nil if that is
// more than is left.
func (p *Pool) Get(n int) []byte {
	if n < 1 || int64(n) > p.limit {
		return nil
	}
	class := bits.Len(uint(max(n, minBuffer) - 1))
	size := int64(1) << class
	p.mu.Lock()
	ok := p.used+size <= p.limit
	if ok {
		p.used += size
	}
	p.mu.Unlock()
	if !ok {
		return nil
	}
	if b, ok := p.idle[class].Get().(*[]byte); ok {
		return (*b)[:n]
	}
	return make([]byte, n, size)
}

// Put takes a buffer of Get back.
func (p *Pool) Put(b []byte) {
	size := cap(b)
	class := bits.Len(uint(size)) - 1
	p.mu.Lock()
	p.used -= int64(size)
	ok := size == 1<<class && p.used >= 0
	p.mu.Unlock()
	if !ok {
		panic(fmt.Sprintf("kvstream: a buffer of %d bytes that the pool does not miss", size))
	}
	p.idle[class].Put(&b)
}

// Used returns the bytes of the buffers in use.
func (p *Pool) Used() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}
