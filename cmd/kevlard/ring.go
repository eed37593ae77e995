package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kevlard/kevlard/api"
)

// defaultLeave is how long leave waits for sessions to end.
const defaultLeave = time.Minute

// answerMargin is what a verb waits beyond the time that it gave the daemon.
const answerMargin = 10 * time.Second

// joinTimeout bounds a join: addresses that do not answer are named after it.
const joinTimeout = 30 * time.Second

func (sh shell) joinCommand() *cli.Command {
	return &cli.Command{
		Name: "join", Usage: "tell the local daemon to join a ring", ArgsUsage: "ADDR...",
		Action: func(c *cli.Context) error {
			addrs := c.Args().Slice()
			if len(addrs) == 0 {
				return usageError("join needs at least one ADDR: the gossip address, HOST:PORT, of a member")
			}
			ctx, cancel := context.WithTimeout(c.Context, joinTimeout)
			defer cancel()
			j, err := sh.client(c).Join(ctx, addrs)
			if err != nil {
				return fmt.Errorf("join %s: %w", strings.Join(addrs, ", "), err)
			}
			for _, addr := range slices.Sorted(maps.Keys(j.Errors)) {
				fmt.Fprintf(c.App.ErrWriter, "kevlard: %s: %s\n", addr, j.Errors[addr])
			}
			if wantsJSON(c) {
				err = writeJSON(c.App.Writer, j)
			} else {
				fmt.Fprintf(c.App.Writer, "%d of %d answered; the ring shows %s\n", j.Answered, j.Asked, strings.Join(j.Seen, ", "))
			}
			if err == nil && j.Answered == 0 {
				return fmt.Errorf("join %s: nobody answered: is the address the gossip address of a running member, are UDP and TCP open, is the secret the same?", strings.Join(addrs, ", "))
			}
			return err
		},
	}
}

func (sh shell) leaveCommand() *cli.Command {
	return &cli.Command{
		Name: "leave", Usage: "drain, leave the ring, stop the daemon; exit 0 only if no session was lost",
		Flags: []cli.Flag{&cli.DurationFlag{Name: "timeout", Value: defaultLeave, Usage: "how long sessions may take to end, `DURATION`"}},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			timeout := c.Duration("timeout")
			if timeout < 0 || timeout > api.MaxLeave {
				return usageError("flag --timeout is %v: want a positive duration such as 60s, at most %v", timeout, api.MaxLeave)
			}
			ctx, cancel := context.WithTimeout(c.Context, timeout+answerMargin)
			defer cancel()
			l, err := sh.client(c).Leave(ctx, timeout)
			if err != nil {
				return fmt.Errorf("leave: %w", err)
			}
			if wantsJSON(c) {
				err = writeJSON(c.App.Writer, l)
			} else if !l.Lost {
				_, err = fmt.Fprintln(c.App.Writer, "left; no session was lost")
			}
			if err == nil && l.Lost {
				return fmt.Errorf("leave: left, but %d sessions had not ended within %v and were cut off: give --timeout more next time", l.Cut, timeout)
			}
			return err
		},
	}
}

func (sh shell) drainCommand() *cli.Command {
	return &cli.Command{
		Name: "drain", Usage: "take no new sessions on a node; the present ones move or finish", ArgsUsage: "[NODE]",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "undo", Usage: "take new sessions again"}},
		Action: func(c *cli.Context) error {
			if c.NArg() > 1 {
				return usageError("drain takes one NODE, but got a second: %q", c.Args().Get(1))
			}
			node, undo := c.Args().First(), c.Bool("undo")
			if err := sh.client(c).Drain(c.Context, node, undo); err != nil {
				return within("drain "+cmp.Or(node, "this node"), err)
			}
			if wantsJSON(c) {
				return writeJSON(c.App.Writer, map[string]any{"draining": !undo})
			}
			word := "draining"
			if undo {
				word = "taking sessions again"
			}
			_, err := fmt.Fprintln(c.App.Writer, word)
			return err
		},
	}
}

func (sh shell) forceLeaveCommand() *cli.Command {
	return &cli.Command{
		Name: "force-leave", Usage: "declare a dead node gone and free its name", ArgsUsage: "NODE",
		Action: func(c *cli.Context) error {
			node, err := oneArgument(c, "NODE")
			if err != nil {
				return err
			}
			if err := sh.client(c).ForceLeave(c.Context, node); err != nil {
				return within("force-leave "+node, err)
			}
			if wantsJSON(c) {
				return writeJSON(c.App.Writer, map[string]any{"left": node})
			}
			_, err = fmt.Fprintf(c.App.Writer, "%s is gone; its name is free\n", node)
			return err
		},
	}
}
