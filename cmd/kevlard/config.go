package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"strings"

	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"github.com/urfave/cli/v2"
)

// defaultConfigFile is read by the agent, if it is there and no other is named.
const defaultConfigFile = "/etc/kevlard/kevlard.toml"

func configFlag() cli.Flag {
	return &cli.StringFlag{Name: "config", Aliases: []string{"c"}, Usage: "configuration `FILE` (default " + defaultConfigFile + ", if it exists)"}
}

func (sh shell) configCommand() *cli.Command {
	return &cli.Command{
		Name:  "config",
		Usage: "check or print a configuration",
		Subcommands: []*cli.Command{
			{Name: "check", Usage: "list everything that is wrong with a file", ArgsUsage: "FILE", Action: sh.configCheck},
			{
				Name: "print", Usage: "show the values in effect and where each came from", ArgsUsage: "[FILE]",
				Flags: configFlags(), Action: sh.configPrint,
			},
		},
		Action: needVerb,
	}
}

// configFlags makes a flag of every configuration key, besides those that are
// global flags.
func configFlags() []cli.Flag {
	var cfg config.Config
	flags := []cli.Flag{configFlag()}
	for _, f := range cfg.Fields() {
		if globalFlag(f.Key) != "" {
			continue
		}
		usage := f.Doc + " (env " + f.Env() + ")"
		if f.Inert() {
			usage = "no effect yet"
		}
		var aliases []string
		if f.Short != "" {
			aliases = []string{f.Short}
		}
		if f.IsBool() {
			flags = append(flags, &cli.BoolFlag{Name: f.Flag(), Aliases: aliases, Usage: usage})
		} else {
			flags = append(flags, &cli.StringFlag{Name: f.Flag(), Aliases: aliases, Usage: usage, Hidden: f.Inert()})
		}
	}
	return flags
}

// globalFlag returns the global flag that sets a key, or "".
func globalFlag(key string) string {
	switch key {
	case "control.socket":
		return "control"
	case "log.level":
		return "log-level"
	case "log.format":
		return "log-format"
	}
	return ""
}

// loadConfig reads all sources of configuration that the verb has. Problems are
// one usage error of several lines; warnings go to stderr.
func (sh shell) loadConfig(c *cli.Context, defaults config.Config) (config.Loaded, error) {
	src := config.Source{Defaults: defaults, Env: sh.env, Flags: map[string]string{}}
	if v := sh.env["KEVLARD_CONTROL"]; v != "" {
		src.Env = environment{}
		for name, value := range sh.env {
			src.Env[name] = value
		}
		src.Env["KEVLARD_CONTROL_SOCKET"] = v // the key's own name, in the pattern of all others
	}
	for _, f := range defaults.Fields() {
		name := f.Flag()
		if g := globalFlag(f.Key); g != "" {
			name = g
		}
		if c.IsSet(name) {
			src.Flags[f.Key] = fmt.Sprint(c.Value(name))
		}
	}
	path := c.String("config")
	if path == "" && c.Command.Name == "print" {
		path = c.Args().First()
	}
	data, err := readConfig(path)
	if err != nil {
		return config.Loaded{}, err
	}
	if data != nil {
		src.File, src.Data = path, data
		if path == "" {
			src.File = defaultConfigFile
		}
	}
	loaded, problems := config.Load(src)
	for _, w := range loaded.Warnings {
		fmt.Fprintf(c.App.ErrWriter, "%skevlard: warning: %v\n", priority(c.App.ErrWriter, slog.LevelWarn), w)
	}
	return loaded, problemsError(problems)
}

// readConfig returns the bytes of the file, or nil if none is named and the
// default one does not exist.
func readConfig(path string) ([]byte, error) {
	named := path != ""
	if !named {
		path = defaultConfigFile
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return nil, nil
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, usageError("read configuration: %w: the user that runs kevlard must be able to read it", err)
	case err != nil:
		return nil, usageError("read configuration: %w: name an existing file with --config", err)
	}
	if data == nil {
		data = []byte{}
	}
	return data, nil
}

// problemList is all that is wrong with a configuration.
type problemList []config.Problem

// Error says each problem in a line of its own.
func (l problemList) Error() string {
	lines := make([]string, len(l))
	for i, p := range l {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\nkevlard: ")
}

func problemsError(problems []config.Problem) error {
	if len(problems) == 0 {
		return nil
	}
	return &exitError{exitUsage, problemList(problems)}
}

func (sh shell) configCheck(c *cli.Context) error {
	path, err := oneArgument(c, "FILE")
	if err != nil {
		return err
	}
	data, err := readConfig(path)
	if err != nil {
		return err
	}
	loaded, problems := config.Load(config.Source{Defaults: config.Defaults(), File: path, Data: data})
	if wantsJSON(c) {
		type line struct {
			Key     string `json:"key"`
			Where   string `json:"where"`
			Text    string `json:"text"`
			Nearest string `json:"nearest,omitempty"`
		}
		list := func(ps []config.Problem) []line {
			out := make([]line, 0, len(ps))
			for _, p := range ps {
				out = append(out, line{p.Key, p.Where, p.Text, p.Nearest})
			}
			return out
		}
		err := writeJSON(c.App.Writer, map[string]any{"file": path, "ok": len(problems) == 0, "problems": list(problems), "warnings": list(loaded.Warnings)})
		if err == nil && len(problems) > 0 {
			return &exitError{exitUsage, errSilent.err}
		}
		return err
	}
	for _, w := range loaded.Warnings {
		fmt.Fprintf(c.App.ErrWriter, "kevlard: warning: %v\n", w)
	}
	if err := problemsError(problems); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "%s: ok\n", path)
	return nil
}

func (sh shell) configPrint(c *cli.Context) error {
	if c.NArg() > 1 {
		return usageError("config print takes one argument, FILE, but got %q", c.Args().Get(1))
	}
	loaded, err := sh.loadConfig(c, config.Defaults())
	if err != nil {
		return err
	}
	type value struct {
		Value  string `json:"value"`
		Origin string `json:"origin"`
	}
	values := map[string]value{}
	t := newTable("KEY", "VALUE", "FROM")
	for _, f := range loaded.Config.Fields() {
		v := value{hideSecrets(f.Text()), loaded.Origin[f.Key]}
		if f.Inert() {
			if v.Origin == "default" {
				continue
			}
			v.Value = "(no effect yet)"
		}
		values[f.Key] = v
		t.row(f.Key, v.Value, v.Origin)
	}
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, values)
	}
	return t.write(c.App.Writer)
}

// hideSecrets removes the password of a URL.
func hideSecrets(text string) string {
	if u, err := url.Parse(text); err == nil && u.User != nil {
		return u.Redacted()
	}
	return text
}
