package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

func completionCommand() *cli.Command {
	return &cli.Command{
		Name: "completion", Usage: "print a completion script", ArgsUsage: "bash|zsh|fish",
		Description: "bash: source <(kevlard completion bash)\nzsh:  source <(kevlard completion zsh)\nfish: kevlard completion fish | source",
		Action: func(c *cli.Context) error {
			name, err := oneArgument(c, "bash, zsh or fish")
			if err != nil {
				return err
			}
			var script string
			switch name {
			case "bash":
				script = bashCompletion(c.App)
			case "zsh":
				script = "autoload -U +X bashcompinit && bashcompinit\n" + bashCompletion(c.App)
			case "fish":
				if script, err = c.App.ToFishCompletion(); err != nil {
					return fmt.Errorf("make the fish completion: %w", err)
				}
			default:
				return usageError("completion for %q: want bash, zsh or fish", name)
			}
			_, err = fmt.Fprint(c.App.Writer, script)
			return err
		},
	}
}

// bashCompletion writes out all words, so that completing starts no process.
func bashCompletion(app *cli.App) string {
	var b strings.Builder
	b.WriteString(`_kevlard() {
  local cur="${COMP_WORDS[COMP_CWORD]}" verb="" word words
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$verb $word" in
`)
	var cases []string
	visit(app.Commands, "", func(path string, c *cli.Command) {
		parent := strings.TrimSuffix(strings.TrimSuffix(path, c.Name), " ")
		cases = append(cases, fmt.Sprintf("      %q) verb=%q ;;\n", parent+" "+c.Name, path))
	})
	b.WriteString(strings.Join(cases, ""))
	b.WriteString("    esac\n  done\n  case \"$verb\" in\n")
	global := flagWords(app.Flags)
	visit(app.Commands, "", func(path string, c *cli.Command) {
		words := append(verbWords(c.Subcommands), flagWords(c.Flags)...)
		fmt.Fprintf(&b, "    %q) words=%q ;;\n", path, strings.Join(append(words, global...), " "))
	})
	fmt.Fprintf(&b, "    *) words=%q ;;\n  esac\n", strings.Join(append(verbWords(app.Commands), global...), " "))
	b.WriteString("  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\ncomplete -o default -F _kevlard kevlard\n")
	return b.String()
}

// visit calls f for every visible command with its path, such as "model ls".
func visit(commands []*cli.Command, prefix string, f func(path string, c *cli.Command)) {
	for _, c := range commands {
		if c.Hidden || c.Name == "help" {
			continue
		}
		path := strings.TrimSpace(prefix + " " + c.Name)
		f(path, c)
		visit(c.Subcommands, path, f)
	}
}

func verbWords(commands []*cli.Command) []string {
	var words []string
	for _, c := range commands {
		if !c.Hidden && c.Name != "help" {
			words = append(words, c.Name)
		}
	}
	return words
}

func flagWords(flags []cli.Flag) []string {
	var words []string
	for _, f := range flags {
		if v, ok := f.(cli.VisibleFlag); ok && v.IsVisible() {
			words = append(words, "--"+f.Names()[0])
		}
	}
	return words
}
