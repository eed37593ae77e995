package mesh

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/transport"

	"github.com/kevlard/kevlard"
)

// Call asks a node and waits for its answer: a request of at most 1 MiB under a
// method of at most 255 bytes, on a stream of its own beside the control messages,
// with no order between calls or to messages. The request is served at most once.
// It fails with a *RemoteError if the handler there failed, with ErrQueueFull if 64
// calls to the node are in flight, and when ctx ends or the connection breaks; in
// these two cases the request may have been served.
func (m *Mesh) Call(ctx context.Context, to kevlard.NodeID, method string, body []byte) ([]byte, error) {
	request, err := newFrame(kindCall, []byte(method), body)
	if err != nil {
		return nil, err
	}
	p, err := m.pairTo(to)
	if err != nil {
		return nil, err
	}
	select {
	case p.calls <- struct{}{}:
		defer func() { <-p.calls }()
	default:
		return nil, fmt.Errorf("%w: %d calls to node %s in flight", ErrQueueFull, maxCalls, to)
	}
	answer, err := call(ctx, p.control.conn, request)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("call %s on node %s: %w", method, to, err)
	}
	if answer.kind == kindFailure {
		return nil, &RemoteError{Node: to, Method: method, Text: printable(answer.body)}
	}
	return answer.body, nil
}

func call(ctx context.Context, conn transport.CapableConn, request []byte) (frame, error) {
	stream, err := conn.OpenStream(ctx)
	if err != nil {
		return frame{}, err
	}
	// The reset tells the other side to stop working on it. After a good end it
	// only tidies up what Close left.
	defer stream.Reset()
	stop := context.AfterFunc(ctx, func() { stream.Reset() })
	defer stop()
	if _, err := stream.Write(request); err != nil {
		return frame{}, err
	}
	answer, err := readFrame(stream, only(kindAnswer, kindFailure))
	if err != nil {
		return frame{}, err
	}
	return answer, nil
}

// answerAll serves the calls of one control connection, each in a goroutine, as
// many as yamux lets the peer have streams. It returns when all have ended.
func (m *Mesh) answerAll(ctx context.Context, from Peer, conn transport.CapableConn) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		stream, err := conn.AcceptStream()
		if err != nil {
			return // the connection's reader reports why
		}
		all.Go(func() {
			defer stream.Close()
			if err := m.answer(ctx, from, stream); err != nil {
				m.log.Debug("mesh call ended early", "node", from.Node, "peer", from.ID, "err", err)
			}
		})
	}
}

// errGaveUp cancels a call whose caller reset its stream.
var errGaveUp = errors.New("the caller gave up")

// answer serves one call.
func (m *Mesh) answer(ctx context.Context, from Peer, stream network.MuxedStream) error {
	if err := stream.SetReadDeadline(time.Now().Add(requestTimeout)); err != nil {
		return err
	}
	request, err := readFrame(stream, only(kindCall))
	if err != nil {
		return errors.Join(err, stream.Reset())
	}
	if err := stream.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var watch sync.WaitGroup
	watch.Go(func() {
		// The caller sends nothing more, so this returns at its reset or our close.
		var scrap [1]byte
		_, _ = stream.Read(scrap[:])
		cancel(errGaveUp)
	})
	defer watch.Wait()
	defer stream.CloseRead()
	body, err := m.cfg.Handler.Call(ctx, from, string(request.header), request.body)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var reply []byte
	if err == nil {
		reply, err = newFrame(kindAnswer, nil, body)
	}
	if err != nil {
		text := err.Error()
		if reply, err = newFrame(kindFailure, nil, []byte(text[:min(len(text), maxFailure)])); err != nil {
			panic(fmt.Sprintf("mesh: a text cut to %d bytes does not fit: %v", maxFailure, err))
		}
	}
	_, err = stream.Write(reply)
	return err
}
