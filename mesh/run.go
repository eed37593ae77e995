package mesh

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/libp2p/go-libp2p/core/transport"

	"github.com/kevlard/kevlard"
)

// Run accepts connections and keeps the links of the set until ctx ends, which is
// no error. It returns after everything it started has ended: normally at once, up
// to 10 s later if a peer's network path has silently gone. It can run only once.
func (m *Mesh) Run(ctx context.Context) error {
	m.mu.Lock()
	again := m.ran
	m.ran = true
	m.mu.Unlock()
	if again {
		return errors.New("this mesh has already run: make a new one")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	linked, unlink := context.WithCancelCause(context.WithoutCancel(ctx))
	listener := m.upgrader.UpgradeGatedMaListener(m.dialler, m.upgrader.GateMaListener(m.listener))
	m.accepted.Go(func() { m.accept(ctx, cancel, listener) })
	m.ended.Go(func() { m.supervise(linked) })

	<-ctx.Done()
	// What peers dialled closes first. Were it the other way round, a peer could
	// find its own link still alive after it lost ours, and report us up once more.
	closed := listener.Close()
	m.accepted.Wait()
	unlink(context.Cause(ctx))
	m.ended.Wait()
	if err := context.Cause(ctx); errors.Is(err, errAccept) {
		return err
	}
	if closed != nil {
		return fmt.Errorf("close mesh listener %s: %w", m.Addr(), closed)
	}
	return nil
}

// errAccept marks the one error that ends Run by itself.
var errAccept = errors.New("accept mesh connections")

func (m *Mesh) accept(ctx context.Context, cancel context.CancelCauseFunc, l transport.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			cancel(fmt.Errorf("%w on %s: %w", errAccept, m.Addr(), err)) // nothing if ctx has ended
			return
		}
		m.accepted.Go(func() { m.serve(ctx, conn) })
	}
}

// supervise runs one goroutine for each link of the set and ends those that left
// it, until ctx ends; then it waits for all of them.
func (m *Mesh) supervise(ctx context.Context) {
	type running struct {
		stop context.CancelCauseFunc
		done chan struct{}
	}
	var all sync.WaitGroup
	defer all.Wait()
	links := make(map[*link]running)
	last := make(map[kevlard.NodeID]chan struct{}) // done of the node's latest link
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.changed:
		}
		want := make(map[*link]bool)
		m.mu.RLock()
		for _, l := range m.links {
			want[l] = true
		}
		m.mu.RUnlock()
		for l, r := range links {
			if !want[l] {
				r.stop(ErrRemoved)
				delete(links, l)
			}
		}
		for l := range want {
			if _, ok := links[l]; ok {
				continue
			}
			node := l.address().Node
			before := last[node]
			own, stop := context.WithCancelCause(ctx)
			r := running{stop: stop, done: make(chan struct{})}
			links[l], last[node] = r, r.done
			all.Go(func() {
				defer close(r.done)
				defer stop(nil)
				if before != nil {
					<-before // so that the old link's Down comes before the new one's Up
				}
				l.run(own)
			})
		}
		for node, done := range last {
			select {
			case <-done:
				delete(last, node)
			default: // still running, or still ending
			}
		}
	}
}
