package main

import (
	"io"
	"log/slog"

	"github.com/kevlard/kevlard/cmd/kevlard/config"
)

// newLogger makes the daemon's log. level may be changed while it runs. Under
// systemd, whose journal stamps each line, the time is left out.
func newLogger(w io.Writer, cfg config.Log, level *slog.LevelVar, journal bool) *slog.Logger {
	level.Set(parseLevel(cfg.Level))
	opt := &slog.HandlerOptions{Level: level}
	if journal {
		opt.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
	}
	if cfg.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opt))
	}
	return slog.New(slog.NewTextHandler(w, opt))
}

// parseLevel reads a level that the configuration has checked.
func parseLevel(name string) slog.Level {
	var l slog.Level
	if err := l.UnmarshalText([]byte(name)); err != nil {
		panic("kevlard: unchecked log level " + name)
	}
	return l
}
