package main

import (
	"os"
	"path/filepath"

	"github.com/kevlard/kevlard/api"
	"github.com/urfave/cli/v2"
)

// systemSocket is where the daemon of a machine listens for its administrators.
const systemSocket = "/run/kevlard/kevlard.sock"

// controlPath returns the control socket that the user means.
func (sh shell) controlPath(c *cli.Context) string {
	if p := c.String("control"); p != "" {
		return p
	}
	if p := sh.env["KEVLARD_CONTROL"]; p != "" {
		return p
	}
	return sh.defaultSocket()
}

// defaultSocket returns the machine's socket if its directory exists, else the
// user's own.
func (sh shell) defaultSocket() string {
	runtime := sh.env["XDG_RUNTIME_DIR"]
	if _, err := os.Stat(filepath.Dir(systemSocket)); err == nil || runtime == "" {
		return systemSocket
	}
	return filepath.Join(runtime, "kevlard.sock")
}

// client returns a client of the local daemon.
func (sh shell) client(c *cli.Context) *api.Client { return api.NewClient(sh.controlPath(c)) }
