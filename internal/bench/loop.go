package bench

import (
	"context"
	"sync"
	"time"

	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// arrival is one stream of the load, as its client saw it.
type arrival struct {
	variant    int
	result     load.Result
	firstShown time.Duration // from sending to the first text, of any try
	restarts   int           // tries that came to nothing
}

// openLoop starts stream i at(i) after the beginning, whether or not earlier ones
// have ended, until at says that there are no more or stop ends; then it waits for
// those under way.
func openLoop(stop <-chan struct{}, at func(i int) (time.Duration, bool), stream func(i int) arrival) []arrival {
	began := time.Now()
	results := make(chan arrival)
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	next := func(i int) bool {
		due, more := at(i)
		if more {
			timer.Reset(time.Until(began.Add(due)))
		}
		return more
	}
	var out []arrival
	started, running, open := 0, 0, next(0)
	for open || running > 0 {
		select {
		case <-stop:
			open, stop = false, nil
			timer.Stop()
		case a := <-results:
			running--
			out = append(out, a)
		case <-timer.C:
			if !open {
				continue
			}
			i := started
			started++
			running++
			go func() { results <- stream(i) }()
			open = next(started)
		}
	}
	return out
}

// steadily is the arrivals of a fixed rate, without end.
func steadily(rps float64) func(i int) (time.Duration, bool) {
	return func(i int) (time.Duration, bool) { return time.Duration(float64(i) / rps * float64(time.Second)), true }
}

// listed is the arrivals of a plan.
func listed(times []time.Duration) func(i int) (time.Duration, bool) {
	return func(i int) (time.Duration, bool) {
		if i >= len(times) {
			return 0, false
		}
		return times[i], true
	}
}

// board knows how far each stream is, as its client sees it.
type board struct {
	mu      sync.Mutex
	streams map[string]progress // by session
}

type progress struct {
	variant int
	prompt  int // tokens
	shown   int // tokens
	most    int // tokens that it will show
}

func newBoard() *board { return &board{streams: map[string]progress{}} }

// follow returns what load.Client.Stream shall call with each piece.
func (b *board) follow(variant int, r load.Request) func(string, load.Piece) {
	return func(session string, p load.Piece) {
		b.mu.Lock()
		defer b.mu.Unlock()
		at := b.streams[session]
		b.streams[session] = progress{variant, len(r.PromptIDs), at.shown + len(p.IDs), r.MaxTokens}
	}
}

func (b *board) get(session string) (progress, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := b.streams[session]
	return p, ok
}

// ripe reports whether breaking the stream's host now gives a recovery within the
// range of contexts.
func (p progress) ripe(c Contexts) bool {
	context := p.prompt + p.shown
	return p.shown >= minShown && p.most-p.shown >= minLeft && context >= c.Min && context <= c.Max
}

// stream sends one request to a node and follows it.
func stream(ctx context.Context, client *load.Client, variant int, r load.Request, each func(string, load.Piece)) arrival {
	ctx, cancel := context.WithTimeout(ctx, streamWithin)
	defer cancel()
	res := client.Stream(ctx, r, each)
	return arrival{variant: variant, result: res, firstShown: res.FirstToken()}
}
