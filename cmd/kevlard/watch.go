package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/kevlard/kevlard/api"
	"github.com/urfave/cli/v2"
)

// watchInterval is the time between two pictures of --watch.
const watchInterval = time.Second

// What a terminal is told. A line is cleared behind its text, so that nothing flickers.
const (
	clearAll   = "\x1b[H\x1b[2J"
	home       = "\x1b[H"
	clearLine  = "\x1b[K"
	clearBelow = "\x1b[J"
)

func watchFlag() cli.Flag {
	return &cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "show it again every second, in place on a terminal, until interrupted"}
}

// errWatched ends a verb that was to go on until it is interrupted, and was.
var errWatched = &exitError{exitInterrupted, errors.New("")}

// show writes what draw makes, once, or with --watch every second: on a terminal in
// place and cut to its size, elsewhere, and as JSON, one after the other. A picture that
// fails ends it, except that a daemon that is away may come back.
func show(c *cli.Context, draw func(io.Writer) error) error {
	if !c.Bool("watch") {
		return draw(c.App.Writer)
	}
	out := &pictures{w: c.App.Writer}
	if f, ok := c.App.Writer.(*os.File); ok && !wantsJSON(c) {
		out.size = func() (columns, rows int, ok bool) { return terminalSize(f) }
	}
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		var picture bytes.Buffer
		err := draw(&picture)
		switch {
		case c.Context.Err() != nil:
			return errWatched
		case errors.Is(err, api.ErrNoDaemon):
			fmt.Fprintln(&picture, err)
		case err != nil:
			return err
		}
		if err := out.show(picture.Bytes()); err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-resized:
		case <-c.Context.Done():
			return errWatched
		}
	}
}

// pictures shows texts one after the other.
type pictures struct {
	w     io.Writer
	size  func() (columns, rows int, ok bool) // nil: not a terminal
	drawn bool
}

// show writes one, at once.
func (p *pictures) show(text []byte) error {
	columns, rows, terminal := 0, 0, false
	if p.size != nil {
		columns, rows, terminal = p.size()
	}
	if terminal {
		text = p.onScreen(text, columns, rows)
	}
	if _, err := p.w.Write(text); err != nil {
		return fmt.Errorf("show a picture: %w", err)
	}
	return nil
}

// onScreen replaces the last picture. What does not fit is cut, and how much is said: a
// line that wraps, or a last one that scrolls, would push the beginning out of sight.
func (p *pictures) onScreen(text []byte, columns, rows int) []byte {
	begin := home
	if !p.drawn {
		begin, p.drawn = clearAll, true
	}
	lines := bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	if most := max(1, rows-1); len(lines) > most { // the last row is the cursor's
		more := len(lines) - most + 1
		lines = append(lines[:most-1:most-1], fmt.Appendf(nil, "... %d lines more", more))
	}
	out := []byte(begin)
	for _, line := range lines {
		out = append(append(append(out, cut(line, columns)...), clearLine...), '\n')
	}
	return append(out, clearBelow...)
}

// cut shortens a line to so many characters.
func cut(line []byte, columns int) []byte {
	at := 0
	for range columns {
		if at == len(line) {
			break
		}
		_, n := utf8.DecodeRune(line[at:])
		at += n
	}
	return line[:at]
}
