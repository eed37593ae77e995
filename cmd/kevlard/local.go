package main

import (
	"cmp"
	"context"
	"iter"
	"slices"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/engine"
	"github.com/kevlard/kevlard/model"
	"github.com/oklog/ulid/v2"
	"github.com/urfave/cli/v2"
)

// local is an api.Generator of one model in this process, for one session at a
// time. Requests go the same way as those to a daemon, so flags mean the same.
type local struct {
	model  api.Model
	engine *engine.Local
}

// openLocal loads the model that the flags name.
func openLocal(c *cli.Context) (*local, error) {
	m, err := model.Load(c.String("local"), "")
	if err != nil {
		return nil, err
	}
	t, err := openTokenizer(m)
	if err != nil {
		return nil, err
	}
	if n := c.Int("stages"); n < 1 || n > m.Layers {
		return nil, usageError("flag --stages is %d: want 1 to %d, the layers of %s", n, m.Layers, m.Name)
	}
	threads := c.Int("threads")
	if threads == 0 {
		threads = defaultThreads(1)
	}
	e, err := engine.OpenLocal(m, c.Int("stages"), threads)
	if err != nil {
		return nil, err
	}
	return &local{engine: e, model: api.Model{ID: m.ID, Name: m.Name, Context: e.Context(), Vocab: m.Vocab, Tokenizer: t, Chat: t.chat}}, nil
}

// Models implements api.Generator.
func (l *local) Models() []api.Model { return []api.Model{l.model} }

// Ready implements api.Generator.
func (l *local) Ready() (bool, string) { return true, "" }

// Generate implements api.Generator. The model computes when the stream is read.
func (l *local) Generate(ctx context.Context, req api.GenRequest) (api.Stream, error) {
	s := &localStream{id: cmp.Or(req.Session, kevlard.SessionID(ulid.Make().String()))}
	s.next, s.stop = iter.Pull(func(yield func(api.Update) bool) {
		n := 0
		last := api.Update{Done: true, Reason: "length"}
		err := l.engine.Generate(ctx, req.Prompt, req.MaxTokens, req.Sampling, func(t kevlard.Token) bool {
			if slices.Contains(req.EOG, t) && !req.IgnoreEOG && n >= req.MinTokens {
				last.Reason = "stop"
				return false
			}
			n++
			return yield(api.Update{Tokens: []kevlard.Token{t}})
		})
		if err != nil {
			s.err = err
			return
		}
		yield(last)
	})
	return s, nil
}

// Resume implements api.Generator: nothing outlives its reader.
func (l *local) Resume(_ context.Context, req api.ResumeRequest) (api.Stream, error) {
	return nil, &kevlard.Failure{Code: "session_not_found", Status: 404, Message: "session " + string(req.ID) + " is not known"}
}

// localStream is an api.Stream that computes as it is read.
type localStream struct {
	id   kevlard.SessionID
	next func() (api.Update, bool)
	stop func()
	err  error // why the updates ended early
}

// ID implements api.Stream.
func (s *localStream) ID() kevlard.SessionID { return s.id }

// Next implements api.Stream. The context that matters is Generate's.
func (s *localStream) Next(context.Context) (api.Update, error) {
	u, ok := s.next()
	if !ok {
		return api.Update{}, s.err
	}
	return u, nil
}

// Pause implements api.Stream.
func (s *localStream) Pause() error { return s.Close() }

// Close implements api.Stream.
func (s *localStream) Close() error {
	s.stop()
	return nil
}
