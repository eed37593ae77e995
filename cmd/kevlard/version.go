package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/rdma/verbs"
	"github.com/urfave/cli/v2"
)

// release and commit are set at link time: -X main.release=1.2.3 for released
// binaries, -X main.commit=HASH by make, whose builds have no VCS stamp where
// GOFLAGS turns it off.
var release, commit string

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "version, commit, Go, engine and transports of this binary",
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			v := buildVersion()
			if wantsJSON(c) {
				return writeJSON(c.App.Writer, v)
			}
			t := newTable("kevlard", v.Version)
			t.row("commit", v.Commit)
			t.row("go", v.Go)
			t.row("engine", v.Engine)
			t.row("transports", fmt.Sprint(v.Transports))
			return t.write(c.App.Writer)
		},
	}
}

// buildVersion reads what the linker recorded about this binary.
func buildVersion() api.Version {
	v := api.Version{
		Version:    "0.1.0-dev",
		Go:         runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH,
		Engine:     "none (built without cgo)",
		Transports: []string{"tcp"},
		Commit:     commit,
	}
	if verbs.Built() {
		v.Transports = append(v.Transports, "rdma")
	}
	if release != "" {
		v.Version = release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v.Commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			v.Commit += "+dirty"
		}
	}
	if !builtWithEngine {
		return v
	}
	for _, d := range info.Deps {
		if d.Path == "github.com/ollama/ollama" {
			v.Engine = "ggml cpu (ollama " + d.Version + ")"
		}
	}
	return v
}
