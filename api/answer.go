package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/kevlard/kevlard"
)

// The finish reasons of a Stream, and of OpenAI.
const (
	finishStop   = "stop"
	finishLength = "length"
)

// piece is some more of an answer.
type piece struct {
	text   string
	tokens []kevlard.Token
}

// ending is how an answer ended.
type ending struct {
	reason    string // stop or length
	last      piece  // the rest of the answer
	tokens    int    // generated, all in all
	failovers []kevlard.Failover
}

// run reads the answer of a session to its end and hands it to emit piece by
// piece, except the last one, which belongs to the ending. Whatever run returns,
// the session has ended. An error is the session's, emit's, or ctx's.
func (c *completion) run(ctx context.Context, stream Stream, emit func(piece) error) (end ending, err error) {
	defer func() {
		if closeErr := stream.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("close session %s: %w", stream.ID(), closeErr)
		}
	}()
	decoder := c.model.Tokenizer.NewDecoder()
	matcher := stopMatcher{stops: c.stops}
	for {
		update, err := stream.Next(ctx)
		if err != nil {
			return end, err
		}
		var p piece
		for _, t := range update.Tokens {
			end.tokens++
			p.tokens = append(p.tokens, t)
			text, found := matcher.push(decoder.Push(t))
			p.text += text
			if found {
				end.reason, end.last, end.failovers = finishStop, p, update.Failovers
				return end, nil
			}
		}
		if !update.Done {
			if len(p.tokens) > 0 {
				if err := emit(p); err != nil {
					return end, err
				}
			}
			continue
		}
		end.failovers = update.Failovers
		if update.Err != nil {
			return end, update.Err
		}
		if update.Reason != finishStop && update.Reason != finishLength {
			return end, newError(http.StatusServiceUnavailable, "session_"+update.Reason, "the session ended before its answer was complete: %s", update.Reason)
		}
		text, found := matcher.push(decoder.Flush())
		p.text += text
		end.reason = update.Reason
		if found {
			end.reason = finishStop
		} else {
			p.text += matcher.flush()
		}
		end.last = p
		return end, nil
	}
}
