package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/kevlard/kevlard"
)

// The finish reasons of a Stream, and of OpenAI.
const (
	finishStop   = "stop"
	finishLength = "length"
)

// piece is some more of one choice of an answer.
type piece struct {
	text     string
	tokens   []kevlard.Token
	logprobs []entry  // of the tokens whose text this is; only where they were asked for
	upto     position // what there is of the choice with this piece, but for its phase
}

// add appends q.
func (p *piece) add(q piece) {
	p.text += q.text
	p.tokens = append(p.tokens, q.tokens...)
	p.logprobs = append(p.logprobs, q.logprobs...)
	p.upto = q.upto
}

// ending is how a choice ended.
type ending struct {
	reason    string // stop or length
	tokens    int    // generated, all in all
	cached    int    // of the prompt
	failovers []kevlard.Failover
}

// start starts a session for each choice, or none.
func (c *completion) start(ctx context.Context, gen Generator) ([]Stream, error) {
	streams := make([]Stream, 0, len(c.choices))
	for _, choice := range c.choices {
		s, err := gen.Generate(ctx, choice.gen)
		if err != nil {
			return nil, closeAll(err, streams)
		}
		streams = append(streams, s)
	}
	return streams, nil
}

// pauseAll leaves the sessions to whoever resumes them, and returns err, unless one
// can't be left.
func pauseAll(err error, streams []Stream) error {
	for _, s := range streams {
		if pauseErr := s.Pause(); pauseErr != nil {
			err = errors.Join(err, fmt.Errorf("pause session %s: %w", s.ID(), pauseErr))
		}
	}
	return err
}

// closeAll ends the sessions and returns err, unless one can't be ended.
func closeAll(err error, streams []Stream) error {
	for _, s := range streams {
		if closeErr := s.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("close session %s: %w", s.ID(), closeErr))
		}
	}
	return err
}

// run reads the sessions of all choices to their ends and hands what comes to emit,
// one call at a time. The last piece of a choice comes with its reason, others with
// nil. The first error ends them all: it is a session's, emit's, or ctx's. Whatever
// run returns, the sessions have ended, or are paused. What the client has already is
// not handed to emit.
func (c *completion) run(ctx context.Context, streams []Stream, emit func(k int, p piece, reason *string) error) ([]ending, error) {
	var mu sync.Mutex // held while emit runs
	ends := make([]ending, len(streams))
	all, ctx := errgroup.WithContext(ctx)
	for k, stream := range streams {
		all.Go(func() error {
			hand := func(p piece, reason *string) error {
				mu.Lock()
				defer mu.Unlock()
				return emit(k, p, reason)
			}
			from := position{phase: fresh}
			if c.at.choices != nil {
				from = c.at.choices[k]
			}
			if _, ok := stream.(over); ok {
				ends[k] = ending{reason: finishStop, tokens: from.tokens}
				return nil
			}
			last, err := c.read(ctx, stream, from, &ends[k], func(p piece) error { return hand(p, nil) })
			if err != nil {
				return pauseAll(err, []Stream{stream})
			}
			if err := closeAll(nil, []Stream{stream}); err != nil || from.phase == ended {
				return err
			}
			return hand(last, &ends[k].reason)
		})
	}
	return ends, all.Wait()
}

// read reads one session to its end, which it describes in end. It hands the pieces
// to emit, except the last one, which it returns. All is made again from the first token
// on, and what comes before the position from is left out.
func (c *completion) read(ctx context.Context, stream Stream, from position, end *ending, emit func(piece) error) (piece, error) {
	decoder := c.model.Tokenizer.NewDecoder()
	matcher := stopMatcher{stops: c.stops}
	var waiting entries
	out := remainder{from: from}
	for {
		update, err := stream.Next(ctx)
		if err != nil {
			return piece{}, err
		}
		if c.logprobs && len(update.Logprobs) != len(update.Tokens) {
			return piece{}, fmt.Errorf("session %s: %d tokens came with %d logprobs", stream.ID(), len(update.Tokens), len(update.Logprobs))
		}
		end.cached = update.Cached
		var p piece
		for i, t := range update.Tokens {
			end.tokens++
			decoded := decoder.Push(t)
			if c.logprobs {
				waiting.add(t, update.Logprobs[i], decoded)
			}
			text, found := matcher.push(decoded)
			if err := out.add(&p, t, text, waiting.release(len(text))); err != nil {
				return piece{}, err
			}
			if found {
				end.reason, end.failovers = finishStop, update.Failovers
				return p, out.reached()
			}
		}
		if update.Done {
			end.failovers = update.Failovers
			err := c.last(&p, update, end, decoder, &matcher, &waiting, &out)
			if err == nil {
				err = out.reached()
			}
			return p, err
		}
		if len(p.tokens) > 0 {
			if err := emit(p); err != nil {
				return piece{}, err
			}
		}
	}
}

// last completes the last piece: what was held back goes out with it.
func (c *completion) last(p *piece, update Update, end *ending, decoder Decoder, matcher *stopMatcher, waiting *entries, out *remainder) error {
	if update.Err != nil {
		return update.Err
	}
	if update.Reason != finishStop && update.Reason != finishLength {
		return newError(http.StatusServiceUnavailable, "session_"+update.Reason, "the session ended before its answer was complete: %s", update.Reason)
	}
	text, found := matcher.push(decoder.Flush())
	out.rest(p, text, waiting.release(len(text)))
	end.reason = update.Reason
	if found {
		end.reason = finishStop
		return nil
	}
	out.rest(p, matcher.flush(), waiting.flush())
	return nil
}
