package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/urfave/cli/v2"
)

func (sh shell) eventsCommand() *cli.Command {
	return &cli.Command{
		Name: "events", Usage: "the event log: joins, suspicions, failovers, engine exits, ...",
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "since", Usage: "only those of the last `DURATION`, such as 10m"},
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on with those to come, until interrupted"},
		},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			if d := c.Duration("since"); d < 0 {
				return usageError("flag --since is %v: want a positive duration such as 10m", d)
			}
			lines := json.NewEncoder(c.App.Writer)
			err := sh.client(c).Events(c.Context, c.Duration("since"), c.Bool("follow"), func(e report.Event) error {
				if wantsJSON(c) {
					return lines.Encode(e)
				}
				_, err := fmt.Fprintln(c.App.Writer, eventText(e))
				return err
			})
			if c.Bool("follow") && c.Context.Err() != nil {
				return errWatched
			}
			if err == nil && c.Bool("follow") {
				return fmt.Errorf("follow events: the daemon at %s ended", sh.controlPath(c))
			}
			return err
		},
	}
}

// eventText shows an event in one line.
func eventText(e report.Event) string {
	parts := []string{e.At.Local().Format(time.StampMilli), e.Node, e.Type}
	for _, f := range []struct{ name, value string }{
		{"session", e.Session}, {"peer", e.Peer}, {"stage", e.Stage}, {"cause", e.Cause},
	} {
		if f.value != "" {
			parts = append(parts, f.name+"="+f.value)
		}
	}
	if e.TookMS > 0 {
		parts = append(parts, fmt.Sprintf("took=%.1fms", e.TookMS))
	}
	if e.Detail != "" {
		parts = append(parts, e.Detail)
	}
	return strings.Join(parts, " ")
}
