package rdma

import (
	"math/bits"
	"sync"
)

// staging hands out places of one block, in sizes that are powers of two. Who finds no
// room waits in a queue, so that a large place is not starved by small ones.
type staging struct {
	mem []byte

	mu      sync.Mutex
	free    map[int]map[int]bool // offsets of free places, by size
	waiting []*request
}

// place is a part of staging.
type place struct {
	offset, size int // size is a power of two
	mem          []byte
}

// request is a place that is waited for. ready gets it, from whichever goroutine gives
// room back; it must not block.
type request struct {
	n     int
	ready func(place)
}

// newStaging divides mem, whose length is a multiple of maxPlace.
func newStaging(mem []byte) *staging {
	s := &staging{mem: mem, free: map[int]map[int]bool{}}
	for size := minPlace; size <= maxPlace; size *= 2 {
		s.free[size] = map[int]bool{}
	}
	for at := 0; at < len(mem); at += maxPlace {
		s.free[maxPlace][at] = true
	}
	return s
}

// get calls r.ready with a place, now or later.
func (s *staging) get(r *request) {
	s.mu.Lock()
	var p place
	ok := len(s.waiting) == 0
	if ok {
		p, ok = s.takeLocked(r.n)
	}
	if !ok {
		s.waiting = append(s.waiting, r)
	}
	s.mu.Unlock()
	if ok {
		r.ready(p)
	}
}

// cancel takes a request back; false if it was served.
func (s *staging) cancel(r *request) bool {
	s.mu.Lock()
	found := false
	for i, w := range s.waiting {
		if w == r {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			found = true
			break
		}
	}
	served := s.serveLocked() // those behind it may fit
	s.mu.Unlock()
	for _, f := range served {
		f()
	}
	return found
}

// put gives a place back.
func (s *staging) put(p place) {
	s.mu.Lock()
	at, size := p.offset, p.size
	for size < maxPlace && s.free[size][at^size] {
		delete(s.free[size], at^size)
		at &^= size
		size *= 2
	}
	s.free[size][at] = true
	served := s.serveLocked()
	s.mu.Unlock()
	for _, f := range served {
		f()
	}
}

// serveLocked gives places to those that wait, in order, as long as they fit.
func (s *staging) serveLocked() (served []func()) {
	for len(s.waiting) > 0 {
		r := s.waiting[0]
		p, ok := s.takeLocked(r.n)
		if !ok {
			break
		}
		s.waiting[0] = nil
		s.waiting = s.waiting[1:]
		served = append(served, func() { r.ready(p) })
	}
	return served
}

// takeLocked splits the smallest free place that is large enough.
func (s *staging) takeLocked(n int) (place, bool) {
	want := max(minPlace, 1<<bits.Len(uint(n-1)))
	size := want
	for size <= maxPlace && len(s.free[size]) == 0 {
		size *= 2
	}
	if size > maxPlace {
		return place{}, false
	}
	var at int
	for at = range s.free[size] {
		break
	}
	delete(s.free[size], at)
	for size > want {
		size /= 2
		s.free[size][at+size] = true
	}
	return place{at, size, s.mem[at : at+n : at+size]}, true
}

// used returns the bytes handed out.
func (s *staging) used() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.mem)
	for size, free := range s.free {
		n -= size * len(free)
	}
	return n
}
