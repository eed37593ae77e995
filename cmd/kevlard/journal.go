package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/coreos/go-systemd/v22/journal"
)

// onJournal reports whether w is what systemd's journal reads. JOURNAL_STREAM alone
// does not say so: terminals of a desktop inherit it.
func onJournal(w io.Writer) bool {
	if w != io.Writer(os.Stderr) {
		return false
	}
	ok, err := journal.StderrIsJournalStream()
	return ok && err == nil
}

// priority returns what the journal takes off a line of this level and files it
// under (sd-daemon(3)); nothing where w is not the journal.
func priority(w io.Writer, level slog.Level) string {
	switch {
	case !onJournal(w):
		return ""
	case level < slog.LevelInfo:
		return "<7>"
	case level < slog.LevelWarn:
		return "<6>"
	case level < slog.LevelError:
		return "<4>"
	default:
		return "<3>"
	}
}

// prefixLines puts the prefix before each line, since the journal takes each as an
// entry of its own.
func prefixLines(prefix, text string) string {
	return prefix + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n"+prefix)
}

// journalHandler writes each record with the priority of its level before it. make
// gives the handler of one level; all write to the same file, each record at once.
type journalHandler struct{ debug, info, warn, error slog.Handler }

func newJournalHandler(w io.Writer, make func(io.Writer) slog.Handler) journalHandler {
	at := func(level slog.Level) slog.Handler { return make(prefixed{w, priority(w, level)}) }
	return journalHandler{at(slog.LevelDebug), at(slog.LevelInfo), at(slog.LevelWarn), at(slog.LevelError)}
}

// Enabled implements slog.Handler.
func (h journalHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.of(level).Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h journalHandler) Handle(ctx context.Context, r slog.Record) error {
	return h.of(r.Level).Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.each(func(one slog.Handler) slog.Handler { return one.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h journalHandler) WithGroup(name string) slog.Handler {
	return h.each(func(one slog.Handler) slog.Handler { return one.WithGroup(name) })
}

func (h journalHandler) each(f func(slog.Handler) slog.Handler) journalHandler {
	return journalHandler{f(h.debug), f(h.info), f(h.warn), f(h.error)}
}

func (h journalHandler) of(level slog.Level) slog.Handler {
	switch {
	case level < slog.LevelInfo:
		return h.debug
	case level < slog.LevelWarn:
		return h.info
	case level < slog.LevelError:
		return h.warn
	default:
		return h.error
	}
}

// prefixed puts a prefix before what is written at once, one record.
type prefixed struct {
	w      io.Writer
	prefix string
}

// Write implements io.Writer.
func (p prefixed) Write(b []byte) (int, error) {
	if _, err := p.w.Write(append([]byte(p.prefix), b...)); err != nil {
		return 0, err
	}
	return len(b), nil
}
