package main

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/daemon"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/weights"
)

// generator is an api.Generator whose sessions the daemon runs.
type generator struct {
	daemon *daemon.Daemon
	models *catalogue
}

// Models implements api.Generator: what the ring holds, with what is known here.
func (g generator) Models() []api.Model {
	var out []api.Model
	for _, m := range g.daemon.Models() {
		a := api.Model{ID: m.ID, Name: m.Name, Context: m.Context, Vocab: m.Vocab}
		if known, ok := g.models.get(m.ID); ok {
			a.Tokenizer, a.Chat = known.tokenizer, known.tokenizer.chat
			a.Created = time.Unix(0, known.manifest.Stamp.ModTime)
		}
		out = append(out, a)
	}
	return out
}

// wanted lists the models that requests may ask for.
func (g generator) wanted() []kevlard.Digest {
	var out []kevlard.Digest
	for _, m := range g.daemon.Models() {
		out = append(out, m.ID)
	}
	return out
}

// Ready implements api.Generator.
func (g generator) Ready() (bool, string) { return g.daemon.Ready() }

// Generate implements api.Generator.
func (g generator) Generate(ctx context.Context, req api.GenRequest) (api.Stream, error) {
	s, err := g.daemon.GenerateAs(ctx, cmp.Or(req.ID, daemon.Mint(req.Session)), req.Session, node.Request{
		Model: req.Model, Prompt: req.Prompt, MaxTokens: req.MaxTokens, Sampling: req.Sampling,
		EOG: req.EOG, IgnoreEOG: req.IgnoreEOG, MinTokens: req.MinTokens, Salt: req.Salt, Envelope: req.Envelope,
	}, req.Alive)
	if err != nil {
		return nil, err
	}
	return daemonStream{s}, nil
}

// Resume implements api.Generator.
func (g generator) Resume(ctx context.Context, req api.ResumeRequest) (api.Stream, error) {
	s, err := g.daemon.Resume(ctx, req.ID, req.Accept, req.Alive)
	if err != nil {
		return nil, err
	}
	return daemonStream{s}, nil
}

// daemonStream is an api.Stream.
type daemonStream struct{ *daemon.Stream }

// Next implements api.Stream.
func (s daemonStream) Next(ctx context.Context) (api.Update, error) {
	u, err := s.Stream.Next(ctx)
	return api.Update(u), err
}

// administered is an api.Node.
type administered struct {
	*daemon.Daemon
	models *catalogue
}

// Events implements api.Node.
func (a administered) Events(ctx context.Context, since time.Time, follow bool, emit func(report.Event) error) error {
	if follow {
		return a.Follow(ctx, since, emit)
	}
	for _, e := range a.Daemon.Events(since) {
		if err := emit(e); err != nil {
			return err
		}
	}
	return nil
}

// Fetch implements api.Node.
func (a administered) Fetch(ctx context.Context, name string, lo, hi int, emit func(report.Fetch) error) error {
	id, err := a.FindModel(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var last report.Fetch
	tell := func(f report.Fetch) {
		last = f
		if err := emit(f); err != nil {
			cancel(err) // nobody waits for it any more
		}
	}
	layers := kevlard.Layers{Lo: lo, Hi: hi}
	if hi == 0 {
		// How many there are is in the header.
		path, err := a.FetchWeights(ctx, id, kevlard.Layers{}, tell)
		if err != nil {
			return fetchFailure(err)
		}
		m, err := a.models.loader.Load(ctx, path)
		if err != nil {
			return err
		}
		layers = m.All()
	}
	path, err := a.FetchWeights(ctx, id, layers, tell)
	if err != nil {
		return fetchFailure(err)
	}
	m, err := a.models.loader.Load(ctx, path)
	if err == nil {
		err = a.models.know(m)
	}
	if err != nil {
		return err
	}
	a.models.stir()
	if len(last.Units) == 0 || last.Lo != layers.Lo || last.Hi != layers.Hi { // it was there
		last = report.Fetch{Model: id.String(), Name: m.Name, Lo: layers.Lo, Hi: layers.Hi, Units: []report.FetchUnit{}, Holders: []report.FetchHolder{}}
		for _, u := range m.StageUnits(layers) {
			last.Units = append(last.Units, report.FetchUnit{Name: u.Name, Bytes: u.Bytes, Total: u.Bytes, Verified: true})
			last.Bytes, last.Total = last.Bytes+u.Bytes, last.Total+u.Bytes
		}
	}
	last.Path = path
	return emit(last)
}

// fetchFailure gives errors of a fetch their code. None is a matter of policy.
func fetchFailure(err error) error {
	code := "fetch_failed"
	if errors.Is(err, weights.ErrNoHolder) {
		code = "no_holder"
	}
	return &kevlard.Failure{Code: code, Status: 500, Message: err.Error()}
}

// Drain implements api.Node.
func (a administered) Drain(ctx context.Context, node string, undo bool) error {
	return a.Daemon.Drain(ctx, kevlard.NodeID(node), undo)
}

// ForceLeave implements api.Node.
func (a administered) ForceLeave(_ context.Context, node string) error {
	return a.Daemon.ForceLeave(kevlard.NodeID(node))
}
