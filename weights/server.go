package weights

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kevlard/kevlard"
)

// SendFunc sends a bulk piece to a node.
type SendFunc func(ctx context.Context, to kevlard.NodeID, header, body []byte) error

// Server answers requests out of a library.
type Server struct {
	self    kevlard.NodeID
	library *Library
	send    SendFunc
	pace    pacer
	codec   codec
	wait    chan struct{} // serveWaiting
	work    chan struct{} // serveAtOnce: taken by who has its peer's line
	sent    func(bytes int)

	mu    sync.Mutex
	lines map[kevlard.NodeID]*line // as many as requests wait
}

// line lets one chunk at a time be on its way to a peer: KV on the same connection waits
// for no more.
type line struct {
	turn  chan struct{} // capacity 1
	users int
}

// NewServer returns a server that sends chunks with send (nil: none), at most bandwidth
// bytes a second (0: no bound), and counts them with sent.
func NewServer(self kevlard.NodeID, l *Library, send SendFunc, bandwidth int64, sent func(bytes int)) *Server {
	return &Server{
		self: self, library: l, send: send, pace: pacer{rate: bandwidth}, codec: newCodec(), sent: sent,
		lines: map[kevlard.NodeID]*line{}, work: make(chan struct{}, serveAtOnce), wait: make(chan struct{}, serveWaiting),
	}
}

// Answer answers the request of a node. It returns when a chunk has been handed to the
// transport. The error is one of format.
func (s *Server) Answer(ctx context.Context, from kevlard.NodeID, body []byte) ([]byte, error) {
	r, err := s.codec.request(body)
	if err != nil {
		return nil, err
	}
	a, err := s.answer(ctx, from, r)
	if no, ok := errors.AsType[*refused](err); ok {
		a, err = Answer{Refusal: no.why, Text: fmt.Sprintf("node %s: %s", s.self, no.text)}, nil
	}
	if err != nil {
		return nil, err
	}
	return s.codec.encode(a), nil
}

func (s *Server) answer(ctx context.Context, from kevlard.NodeID, r Request) (Answer, error) {
	if r.Version != Version {
		return Answer{}, refuse(Unspoken, "it speaks version %d of the weights protocol, not %d", Version, r.Version)
	}
	switch r.Kind {
	case Describe:
		d, err := s.library.describe(r.Model)
		return Answer{Description: d}, err
	case ListSums:
		sums, n, err := s.library.list(ctx, r.Unit)
		return Answer{Sums: sums, Bytes: n}, err
	}
	return Answer{}, s.chunk(ctx, from, r)
}

// chunk sends a chunk, when it is its turn.
func (s *Server) chunk(ctx context.Context, from kevlard.NodeID, r Request) error {
	if s.send == nil {
		return refuse(Absent, "it has no bulk address: set [mesh] bulk_port")
	}
	select {
	case s.wait <- struct{}{}:
		defer func() { <-s.wait }()
	default:
		return refuse(Busy, "%d requests wait", serveWaiting)
	}
	// The line comes first: what a slow peer asked for waits without keeping others from
	// being served.
	leave, err := s.line(ctx, from)
	if err != nil {
		return err
	}
	defer leave()
	select {
	case s.work <- struct{}{}:
		defer func() { <-s.work }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	b, err := s.library.read(r.Unit, r.Chunk)
	if err != nil {
		return err
	}
	if err := s.pace.take(ctx, len(b)); err != nil {
		return err
	}
	// A piece can't be taken back without breaking the connection, which carries KV too. So
	// a caller that gives up now is sent it all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendTimeout)
	defer cancel()
	if err := s.send(ctx, from, pieceHeader(r.Number), b); err != nil {
		return refuse(Failing, "%v", err)
	}
	s.sent(len(b))
	return nil
}

// line waits until nothing else is being read for a peer or on its way to it.
func (s *Server) line(ctx context.Context, to kevlard.NodeID) (leave func(), err error) {
	s.mu.Lock()
	l := s.lines[to]
	if l == nil {
		l = &line{turn: make(chan struct{}, 1)}
		s.lines[to] = l
	}
	if l.users >= serveOne {
		s.mu.Unlock()
		return nil, refuse(Busy, "%d requests of yours wait", serveOne)
	}
	l.users++
	s.mu.Unlock()
	gone := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(s.lines, to)
		}
	}
	select {
	case l.turn <- struct{}{}:
		return func() { <-l.turn; gone() }, nil
	case <-ctx.Done():
		gone()
		return nil, context.Cause(ctx)
	}
}
