package rdma

import "time"

// poster posts the writes of one queue pair, at most depth at a time; others wait in
// order. Its owner's lock guards it.
type poster struct {
	queue   Queue
	depth   int
	flying  int
	backlog []Work // bounded by what the flow lets be under way
	next    uint64
	ends    map[uint64]func() // what to do when a write has completed

	probing bool // an empty write is under way
	probed  time.Time
}

func newPoster(q Queue, depth int) poster {
	return poster{queue: q, depth: depth, ends: map[uint64]func(){}}
}

// post takes writes; end, if not nil, is called when the last has completed, with the
// owner's lock held.
func (p *poster) post(end func(), works ...Work) error {
	for i := range works {
		p.next++
		works[i].ID = p.next
	}
	if end != nil {
		p.ends[p.next] = end
	}
	p.backlog = append(p.backlog, works...)
	return p.flush()
}

// flush posts what fits.
func (p *poster) flush() error {
	n := min(len(p.backlog), p.depth-p.flying)
	if n <= 0 {
		return nil
	}
	works := p.backlog[:n]
	p.flying += n
	if err := p.queue.Post(works...); err != nil {
		return err
	}
	if p.backlog = p.backlog[n:]; len(p.backlog) == 0 {
		p.backlog = nil
	}
	return nil
}

// done is told of a completed write.
func (p *poster) done(id uint64) error {
	p.flying--
	if end, ok := p.ends[id]; ok {
		delete(p.ends, id)
		end()
	}
	return p.flush()
}

// probe posts a write of nothing, which asks no more than whether the peer's card still
// answers: if not, it fails and so does the queue pair. to is a word of the owner's.
func (p *poster) probe(now time.Time, to Work) error {
	if p.probing || now.Sub(p.probed) < probeEvery {
		return nil
	}
	p.probing, p.probed, to.Imm = true, now, 0
	return p.post(func() { p.probing = false }, to)
}
