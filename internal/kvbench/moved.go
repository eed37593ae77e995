package kvbench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"golang.org/x/sync/errgroup"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/conns"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/kvstream/tcp"
)

// headerBytes is what a piece says about itself, about as much as a replication stream does.
const headerBytes = 64

// moved is a sending and a receiving mover.
type moved struct {
	conns    int
	from, to mover.Mover
	sink     *sink
	body     []byte
}

func newMoved(n int, plain, unsummed bool) (*moved, error) {
	m := &moved{conns: n, sink: newSink(n), body: payload()}
	peers, ids := map[kevlard.NodeID]tcp.Peer{}, map[string]kevlard.NodeID{}
	secret := []byte(rand.Text())
	err := m.start(func(node kevlard.NodeID) (mover.Mover, error) {
		key, _, err := crypto.GenerateEd25519Key(rand.Reader)
		if err != nil {
			return nil, err
		}
		id, err := peer.IDFromPrivateKey(key)
		if err != nil {
			return nil, err
		}
		t, err := tcp.New(tcp.Config{
			Self: node, Listen: "127.0.0.1:0", Plain: plain, Unsummed: unsummed, Key: key, Options: conns.Options{Conns: n}, Handler: m.sink,
			Resolve:  func(to kevlard.NodeID) (tcp.Peer, bool) { p, ok := peers[to]; return p, ok },
			Admitted: func(id string) (kevlard.NodeID, bool) { n, ok := ids[id]; return n, ok },
			Secret:   func(context.Context, kevlard.NodeID) ([]byte, error) { return secret, nil },
		})
		if err != nil {
			return nil, err
		}
		peers[node], ids[id.String()] = tcp.Peer{ID: id.String(), Addr: t.Addr()}, node
		return t, nil
	})
	return m, err
}

// start makes both ends.
func (m *moved) start(end func(kevlard.NodeID) (mover.Mover, error)) error {
	to, err := end("receiver")
	if err != nil {
		return err
	}
	from, err := end("sender")
	if err != nil {
		return errors.Join(err, to.Close())
	}
	m.from, m.to = from, to
	return nil
}

func (m *moved) move(ctx context.Context, size int, until time.Time) (int64, error) {
	before := m.sink.bytes.Load()
	var sent atomic.Int64
	work, sending := errgroup.WithContext(ctx)
	for lane := range m.conns {
		work.Go(func() error {
			header := make([]byte, headerBytes)
			header[0] = byte(lane)
			for time.Now().Before(until) {
				if err := m.from.Send(sending, "receiver", mover.Lane(lane), header, m.body[:size]); err != nil {
					return err
				}
				sent.Add(int64(size))
			}
			return nil
		})
	}
	if err := work.Wait(); err != nil {
		return 0, err
	}
	want := before + sent.Load()
	return sent.Load(), m.sink.await(ctx, want)
}

func (m *moved) close() error { return errors.Join(m.from.Close(), m.to.Close()) }

// sink is a mover.Handler with one buffer for each lane, as large as the largest piece.
type sink struct {
	buffers [][]byte
	bytes   atomic.Int64
	more    chan struct{} // capacity 1: bytes has grown
	broken  atomic.Pointer[error]
}

func newSink(lanes int) *sink {
	s := &sink{more: make(chan struct{}, 1)}
	for range lanes {
		s.buffers = append(s.buffers, payload())
	}
	return s
}

func (s *sink) Buffer(_ kevlard.NodeID, header []byte, n int) []byte { return s.buffers[header[0]][:n] }

func (s *sink) Received(_ kevlard.NodeID, _, body []byte) {
	s.bytes.Add(int64(len(body)))
	s.stir()
}

func (s *sink) Aborted(kevlard.NodeID, []byte, []byte) {}

func (s *sink) Lost(to kevlard.NodeID, err error) {
	err = fmt.Errorf("connection to the %s broke: %w", to, err)
	s.broken.CompareAndSwap(nil, &err)
	s.stir()
}

func (s *sink) stir() {
	select {
	case s.more <- struct{}{}:
	default: // await has not looked yet
	}
}

// await waits until so many bytes have arrived since the beginning.
func (s *sink) await(ctx context.Context, want int64) error {
	for s.bytes.Load() < want {
		if err := s.broken.Load(); err != nil {
			return *err
		}
		select {
		case <-s.more:
		case <-ctx.Done():
			if s.bytes.Load() < want {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// payload is a body of the largest size that does not compress.
func payload() []byte {
	b := make([]byte, mover.MaxBody)
	rand.Read(b) // crypto/rand ends the process if it cannot
	return b
}
