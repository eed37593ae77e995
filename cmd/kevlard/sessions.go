package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/urfave/cli/v2"
)

func (sh shell) sessionsCommand() *cli.Command {
	return &cli.Command{
		Name: "sessions", Usage: "live sessions owned here, or everywhere",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "ask every node for its own"},
			watchFlag(),
		},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			client := sh.client(c)
			return show(c, func(w io.Writer) error {
				s, err := client.Sessions(c.Context, c.Bool("all"))
				if err != nil {
					return err
				}
				warn := c.App.ErrWriter
				if c.Bool("watch") {
					warn = w // beside a picture it would be drawn over
				}
				if len(s.Unreachable) > 0 && (warn != w || !wantsJSON(c)) {
					fmt.Fprintf(warn, "kevlard: warning: no answer from %s: their sessions are missing here\n", strings.Join(s.Unreachable, ", "))
				}
				if wantsJSON(c) {
					return writeJSON(w, s)
				}
				return sessionsTable(s).write(w)
			})
		},
	}
}

func sessionsTable(list report.Sessions) *table {
	t := newTable("SESSION", "STATE", "OWNER", "TOKENS", "TERM", "ROUTE", "FAILOVERS", "LAST GAP")
	for _, s := range list.Sessions {
		gap := ""
		if s.Failovers > 0 {
			gap = fmt.Sprintf("%.0f ms", s.LastGapMS)
		}
		t.row(s.ID, s.State, s.Owner, strconv.Itoa(s.Tokens), fmt.Sprintf("%d.%d", s.Epoch, s.Term),
			strings.Join(s.Route, " > "), strconv.Itoa(s.Failovers), gap)
	}
	return t
}
