package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// arrange rewrites a command line so that urfave/cli sees what the user meant. It
// stops looking for flags at the first positional argument, and silently takes
// the rest as arguments; people put flags anywhere. So global flags go first, a
// verb's flags right behind the verb, and the positional arguments, after "--",
// last. A flag that the verb does not know is refused here, with the nearest one
// that it does know.
func arrange(app *cli.App, args []string) ([]string, error) {
	var (
		path     []string // verbs, from the outermost
		global   []string
		local    []string
		operands []string
		commands = app.Commands
		verb     *cli.Command
	)
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			operands = append(operands, args[i+1:]...)
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			next := lookup(commands, arg)
			switch {
			case arg == "help" && verb == nil: // "help model ls" is "model ls --help"
				local = append(local, "--help")
			case next != nil && len(operands) == 0:
				verb, commands = next, next.Subcommands
				path = append(path, next.Name)
			case verb == nil || len(commands) > 0:
				return nil, unknownVerb(path, commands, arg)
			default:
				operands = append(operands, arg)
			}
			continue
		}
		name, _, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		flag, isGlobal := findFlag(app, verb, name)
		if flag == nil {
			return nil, unknownFlag(app, verb, path, name)
		}
		taken := []string{arg}
		if !hasValue && takesValue(flag) {
			if i+1 == len(args) {
				return nil, usageError("flag %s needs a value", arg)
			}
			i++
			taken = append(taken, args[i])
		}
		if isGlobal {
			global = append(global, taken...)
		} else {
			local = append(local, taken...)
		}
	}
	out := slices.Concat(global, path, local)
	if len(operands) > 0 {
		out = append(append(out, "--"), operands...)
	}
	return out, nil
}

func lookup(commands []*cli.Command, name string) *cli.Command {
	for _, c := range commands {
		if c.HasName(name) {
			return c
		}
	}
	return nil
}

// findFlag finds a flag of the verb, or else a global one. Both know help.
func findFlag(app *cli.App, verb *cli.Command, name string) (flag cli.Flag, global bool) {
	if name == "help" || name == "h" {
		return cli.HelpFlag, verb == nil
	}
	if verb != nil {
		for _, f := range verb.Flags {
			if slices.Contains(f.Names(), name) {
				return f, false
			}
		}
	}
	for _, f := range app.Flags {
		if slices.Contains(f.Names(), name) {
			return f, true
		}
	}
	return nil, false
}

func takesValue(f cli.Flag) bool {
	doc, ok := f.(cli.DocGenerationFlag)
	return ok && doc.TakesValue()
}

func unknownFlag(app *cli.App, verb *cli.Command, path []string, name string) error {
	flags := app.Flags
	of := "kevlard"
	if verb != nil {
		flags = slices.Concat(verb.Flags, app.Flags)
		of = "kevlard " + strings.Join(path, " ")
	}
	var names []string
	for _, f := range flags {
		if v, ok := f.(cli.VisibleFlag); ok && v.IsVisible() {
			names = append(names, "--"+f.Names()[0])
		}
	}
	return usageError("%s has no flag --%s%s", of, name, didYouMean("--"+name, names))
}

func unknownVerb(path []string, commands []*cli.Command, arg string) error {
	var names []string
	for _, c := range commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	of := strings.Join(append([]string{"kevlard"}, path...), " ")
	return usageError("%s has no verb %q%s: see %s --help", of, arg, didYouMean(arg, names), of)
}
