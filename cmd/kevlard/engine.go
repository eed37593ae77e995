package main

import (
	"github.com/kevlard/kevlard/engine"
	"github.com/urfave/cli/v2"
)

// engineCommand is the main of an engine process. The daemon starts it; it speaks
// the engine protocol on the file descriptors it inherits.
func engineCommand() *cli.Command {
	return &cli.Command{
		Name:   "engine",
		Usage:  "engine process of one device; started by the daemon, not by people",
		Hidden: true,
		Action: func(c *cli.Context) error {
			if err := engine.Serve(c.Context); err != nil {
				return &exitError{engine.ExitCode(err), err}
			}
			return nil
		},
	}
}
