package main

import (
	"io"
	"log/slog"

	"github.com/kevlard/kevlard/cmd/kevlard/config"
)

// newLogger makes the daemon's log. level may be changed while it runs. For systemd's
// journal, which stamps each line and files it under a priority, the time is left out
// and the priority put before it.
func newLogger(w io.Writer, cfg config.Log, level *slog.LevelVar) *slog.Logger {
	level.Set(parseLevel(cfg.Level))
	opt := &slog.HandlerOptions{Level: level}
	journal := onJournal(w)
	if journal {
		opt.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
	}
	handler := func(w io.Writer) slog.Handler {
		if cfg.Format == "json" {
			return slog.NewJSONHandler(w, opt)
		}
		return slog.NewTextHandler(w, opt)
	}
	if journal {
		return slog.New(newJournalHandler(w, handler))
	}
	return slog.New(handler(w))
}

// parseLevel reads a level that the configuration has checked.
func parseLevel(name string) slog.Level {
	var l slog.Level
	if err := l.UnmarshalText([]byte(name)); err != nil {
		panic("kevlard: unchecked log level " + name)
	}
	return l
}
