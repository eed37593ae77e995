package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"github.com/kevlard/kevlard/model"
	"github.com/kevlard/kevlard/weights"
)

const (
	// rescanInterval is how often the model directories are looked through again, and
	// headers asked for that nobody gave.
	rescanInterval = 30 * time.Second
	// ringInterval is how often the models of the ring are compared with those known here.
	ringInterval = time.Second
)

// catalogue holds what this node's disk says about models: manifests, and the
// tokenizers that a gateway needs as much as a host.
type catalogue struct {
	dirs    []string
	loader  model.Loader
	library *weights.Library // what is fetched, and given to other nodes
	log     *slog.Logger

	told    map[string]bool   // what the last scan found wrong, which is told once
	fetched []*model.Manifest // in earlier lives
	changed chan struct{}     // capacity 1: what is known of a model

	mu     sync.Mutex
	models map[kevlard.Digest]catalogued
}

type catalogued struct {
	manifest  *model.Manifest
	tokenizer tokenizer
}

func newCatalogue(dirs []string, loader model.Loader, library *weights.Library, log *slog.Logger) *catalogue {
	return &catalogue{dirs: dirs, loader: loader, library: library, log: log, changed: make(chan struct{}, 1), models: map[kevlard.Digest]catalogued{}}
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

// scan looks through the directories. A file that cannot be served, and a directory that
// is not there, is only logged, once: other models work without it. One goroutine scans.
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
	told := map[string]bool{}
	for _, err := range problems {
		level := slog.LevelWarn
		switch {
		case c.told[err.Error()]: // the directories are looked through again and again
			level = slog.LevelDebug
		case errors.Is(err, fs.ErrNotExist) && slices.Equal(c.dirs, config.Defaults().Models.Dirs):
			level = slog.LevelDebug // what nobody has named need not be there
		}
		told[err.Error()] = true
		c.log.Log(ctx, level, "model file not served", "error", err)
	}
	c.told = told
}

// unknown lists those models that nothing is known of.
func (c *catalogue) unknown(ids []kevlard.Digest) (out []kevlard.Digest) {
	for _, id := range ids {
		if _, ok := c.get(id); !ok {
			out = append(out, id)
		}
	}
	return out
}

// all lists the models that are known, by name and id, each as the place on this disk
// describes it that has the most of it.
func (c *catalogue) all() []*model.Manifest {
	c.mu.Lock()
	var out []*model.Manifest
	for _, m := range c.models {
		out = append(out, m.manifest)
	}
	c.mu.Unlock()
	for i, m := range out {
		if best, ok := c.library.Find(m.ID, kevlard.Layers{}); ok {
			out[i] = best
		}
	}
	slices.SortFunc(out, func(a, b *model.Manifest) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), slices.Compare(a.ID[:], b.ID[:]))
	})
	return out
}

// find returns what has all that a stage of a model needs, nil if nothing here has.
func (c *catalogue) find(id kevlard.Digest, layers kevlard.Layers) *model.Manifest {
	if m, ok := c.library.Find(id, layers); ok {
		return m
	}
	if m, ok := c.get(id); ok && m.manifest.Holds(layers) { // the library does not take any number
		return m.manifest
	}
	return nil
}

// stir says that there is more of a known model on this disk.
func (c *catalogue) stir() {
	select {
	case c.changed <- struct{}{}:
	default: // it is about to be looked at
	}
}
