package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/model"
	"github.com/kevlard/kevlard/weights"
)

// rescanInterval is how often the model directories are looked through again while
// the ring serves a model that this node has no tokenizer for.
const rescanInterval = 30 * time.Second

// catalogue holds what this node's disk says about models: manifests, and the
// tokenizers that a gateway needs as much as a host.
type catalogue struct {
	dirs    []string
	loader  model.Loader
	library *weights.Library // what is fetched, and given to other nodes
	log     *slog.Logger

	fetched []*model.Manifest // in earlier lives

	mu     sync.Mutex
	models map[kevlard.Digest]catalogued
}

type catalogued struct {
	manifest  *model.Manifest
	tokenizer tokenizer
}

func newCatalogue(dirs []string, loader model.Loader, library *weights.Library, log *slog.Logger) *catalogue {
	return &catalogue{dirs: dirs, loader: loader, library: library, log: log, models: map[kevlard.Digest]catalogued{}}
}

// get returns what is known of a model.
func (c *catalogue) get(id kevlard.Digest) (catalogued, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, ok := c.models[id]
	return m, ok
}

// add takes a model's file, which other nodes may fetch from here.
func (c *catalogue) add(m *model.Manifest) error {
	c.library.Add(m)
	return c.know(m)
}

// know opens the tokenizer of a model, unless it is known.
func (c *catalogue) know(m *model.Manifest) error {
	if _, ok := c.get(m.ID); ok {
		return nil
	}
	t, err := openTokenizer(m)
	if err != nil {
		return err
	}
	if broken, ok := t.chat.(brokenChat); ok {
		c.log.Warn("the model serves completions but no chats", "path", m.Path, "error", broken.err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.models[m.ID] = catalogued{m, t}
	return nil
}

// recall makes what was fetched in earlier lives known.
func (c *catalogue) recall(ctx context.Context) {
	c.fetched = c.library.Scan(ctx)
	for _, m := range c.fetched {
		if err := c.know(m); err != nil {
			c.log.Warn("fetched model not served", "error", err)
		}
	}
}

// holding lists what was fetched that has some layers.
func (c *catalogue) holding(l kevlard.Layers) []*model.Manifest {
	return slices.DeleteFunc(slices.Clone(c.fetched), func(m *model.Manifest) bool { return !m.Holds(l) })
}

// scan looks through the directories. A file that cannot be served is only
// logged: other models work without it.
func (c *catalogue) scan(ctx context.Context) {
	manifests, problems := c.loader.Scan(ctx, c.dirs)
	if ctx.Err() != nil {
		return
	}
	for _, m := range manifests {
		if m.CacheWarning != nil {
			c.log.Warn("digests are not kept for the next start", "path", m.Path, "error", m.CacheWarning)
		}
		if err := c.add(m); err != nil {
			problems = append(problems, err)
		}
	}
	for _, err := range problems {
		level := slog.LevelWarn
		if errors.Is(err, fs.ErrNotExist) {
			level = slog.LevelDebug // a directory that is not there holds nothing
		}
		c.log.Log(ctx, level, "model file not served", "error", err)
	}
}

// run scans again now and then, while wanted names a model that is not known: its
// file may have been put there meanwhile.
func (c *catalogue) run(ctx context.Context, wanted func() []kevlard.Digest) error {
	ticker := time.NewTicker(rescanInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
		for _, id := range wanted() {
			if _, ok := c.get(id); !ok {
				c.scan(ctx)
				break
			}
		}
	}
}
