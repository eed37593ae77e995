package main

import (
	"bytes"
	"errors"
	"io"
	"time"

	"github.com/kevlard/kevlard/api"
	"github.com/urfave/cli/v2"
)

// watchInterval is the time between two pictures of --watch.
const watchInterval = time.Second

// redraw moves the cursor home and clears what the last picture left.
const redraw = "\x1b[H\x1b[J"

func watchFlag() cli.Flag {
	return &cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "show it again every second, until interrupted"}
}

// show writes what draw makes, once, or with --watch every second. A picture that
// fails ends it, except that a daemon that is away may come back.
func show(c *cli.Context, draw func(io.Writer) error) error {
	if !c.Bool("watch") {
		return draw(c.App.Writer)
	}
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		var picture bytes.Buffer // written at once, so that it does not flicker
		if !wantsJSON(c) {
			picture.WriteString(redraw)
		}
		err := draw(&picture)
		switch {
		case errors.Is(err, api.ErrNoDaemon):
			picture.WriteString(err.Error() + "\n")
		case err != nil:
			return err
		}
		if _, err := picture.WriteTo(c.App.Writer); err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-c.Context.Done():
			return c.Context.Err()
		}
	}
}
