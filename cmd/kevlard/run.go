package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"

	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"github.com/urfave/cli/v2"
)

// shell is what a verb knows of the world besides its context, flags and output.
type shell struct {
	env   environment
	args  []string // as given, without the program
	stdin io.Reader
}

// environment holds the process environment.
type environment map[string]string

func newEnvironment(pairs []string) environment {
	env := make(environment, len(pairs))
	for _, p := range pairs {
		name, value, _ := strings.Cut(p, "=")
		env[name] = value
	}
	return env
}

// run is the whole program: it runs the verb that args name and returns the exit
// code. Results go to stdout, everything else to stderr.
func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	sh := shell{env: newEnvironment(env), args: args, stdin: stdin}
	app := sh.app(stdout, stderr)
	arranged, err := arrange(app, args)
	if err == nil {
		err = app.RunContext(ctx, append([]string{app.Name}, arranged...))
	}
	code := exitCode(ctx, err)
	if err != nil && err.Error() != "" {
		fmt.Fprintln(stderr, prefixLines(priority(stderr, slog.LevelError), "kevlard: "+err.Error()))
	}
	return code
}

// app builds the command tree.
func (sh shell) app(stdout, stderr io.Writer) *cli.App {
	app := &cli.App{
		Name:      "kevlard",
		Usage:     "serve language models over a ring of hosts; clients do not notice when one dies",
		UsageText: "kevlard [flags] VERB [flags] [arguments]   (flags may stand anywhere)",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "control", Usage: "control socket of the daemon, `PATH` (env KEVLARD_CONTROL)"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: formatTable, Usage: "`FORMAT` of results: table or json"},
			&cli.StringFlag{Name: "log-level", Usage: "`LEVEL`: debug, info, warn or error (env KEVLARD_LOG_LEVEL)"},
			&cli.StringFlag{Name: "log-format", Usage: "`FORMAT` of logs: text or json (env KEVLARD_LOG_FORMAT)"},
		},
		Before: func(c *cli.Context) error {
			if _, err := outputFormat(c); err != nil {
				return err
			}
			return checkLogFlags(c)
		},
		Commands: []*cli.Command{
			sh.agentCommand(),
			sh.configCommand(),
			keygenCommand(),
			sh.keysCommand(),
			sh.joinCommand(),
			sh.leaveCommand(),
			sh.drainCommand(),
			sh.forceLeaveCommand(),
			sh.membersCommand(),
			sh.topologyCommand(),
			sh.sessionsCommand(),
			sh.eventsCommand(),
			sh.statusCommand(),
			sh.modelCommand(),
			sh.generateCommand(),
			sh.chatCommand(),
			sh.doctorCommand(),
			engineCommand(),
			devCommand(),
			demoCommand(),
			sh.benchCommand(),
			versionCommand(),
			completionCommand(),
			manCommand(),
		},
		Writer:          stdout,
		ErrWriter:       stderr,
		HideVersion:     true,
		ExitErrHandler:  func(*cli.Context, error) {}, // run maps errors to codes
		HideHelpCommand: true,                         // arrange knows help
		OnUsageError:    onUsageError,
		Action:          func(c *cli.Context) error { return cli.ShowAppHelp(c) },
	}
	inherit(app.Commands)
	return app
}

// badValue is what the flag package says of a value that it cannot read.
var badValue = regexp.MustCompile(`^invalid (?:boolean )?value "((?s).*)" for (?:flag )?-([^:]+): `)

// onUsageError keeps urfave/cli from printing the help on top of the error, and says what
// a flag takes.
func onUsageError(c *cli.Context, err error, _ bool) error {
	m := badValue.FindStringSubmatch(err.Error())
	if m == nil {
		return usageError("%w", err)
	}
	dashes, want := "--", "another value"
	if len(m[2]) == 1 {
		dashes = "-"
	}
	flags := c.App.Flags
	if c.Command != nil {
		flags = slices.Concat(c.Command.Flags, flags)
	}
	for _, f := range flags {
		if !slices.Contains(f.Names(), m[2]) {
			continue
		}
		switch f.(type) {
		case *cli.BoolFlag:
			want = "true or false"
		case *cli.DurationFlag:
			want = "a duration such as 90s, 10m or 1h30m"
		case *cli.Float64Flag:
			want = "a number"
		case *cli.IntFlag, *cli.Int64Flag:
			want = "a whole number"
		case *cli.UintFlag, *cli.Uint64Flag:
			want = "a whole number, 0 or more"
		}
	}
	return usageError("flag %s%s is %q: want %s", dashes, m[2], m[1], want)
}

// checkLogFlags refuses values that no verb takes, also for verbs that do not log.
func checkLogFlags(c *cli.Context) error {
	for _, f := range []struct {
		flag, key string
		allowed   []string
	}{
		{"log-level", "log.level", config.LogLevels()},
		{"log-format", "log.format", config.LogFormats()},
	} {
		if v := c.String(f.flag); c.IsSet(f.flag) && !slices.Contains(f.allowed, v) {
			return usageError("flag --%s: %s: %q is not allowed: want %s", f.flag, f.key, v, strings.Join(f.allowed, " or "))
		}
	}
	return nil
}

// inherit gives all commands what urfave/cli does not pass down.
func inherit(commands []*cli.Command) {
	for _, c := range commands {
		c.HideHelpCommand = true
		c.OnUsageError = onUsageError
		inherit(c.Subcommands)
	}
}
