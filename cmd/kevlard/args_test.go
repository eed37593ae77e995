package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
	"pgregory.net/rapid"
)

func TestArrange(t *testing.T) {
	app := shell{}.app(io.Discard, io.Discard)
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"version", "version"},
		{"version -o json", "-o json version"},
		{"-o json version", "-o json version"},
		{"generate Hello -n 5 --control /s", "--control /s generate -n 5 -- Hello"},
		{"generate -- -n", "generate -- -n"},
		{"generate -", "generate -- -"},
		{"generate --seed=-3 x", "generate --seed=-3 -- x"},
		{"generate --seed -3 x", "generate --seed -3 -- x"},
		{"generate version --ignore-eos", "generate --ignore-eos -- version"},
		{"model inspect f -o json", "-o json model inspect -- f"},
		{"model -o json inspect f", "-o json model inspect -- f"},
		{"join a:1 b:2", "join -- a:1 b:2"},
		{"help", "--help"},
		{"help model ls", "model ls --help"},
		{"members --help", "members --help"},
		{"--help", "--help"},
	} {
		got, err := arrange(app, strings.Fields(c.in))
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%q: got %q, %v, want %q", c.in, got, err, c.want)
		}
	}
}

// TestArrangeAnywhere checks that the place of flags does not matter.
func TestArrangeAnywhere(t *testing.T) {
	flags := [][]string{{"-o", "json"}, {"--control=/s"}, {"-n", "5"}, {"--temperature", "0"}, {"--ignore-eos"}}
	rapid.Check(t, func(t *rapid.T) {
		order := rapid.Permutation(flags).Draw(t, "flags")
		verb := rapid.IntRange(0, len(order)).Draw(t, "verb")
		prompt := rapid.IntRange(verb, len(order)).Draw(t, "prompt")
		var args []string
		for i, f := range order {
			if i == verb {
				args = append(args, "generate")
			}
			if i == prompt {
				args = append(args, "text")
			}
			// A flag of the verb makes no sense before it.
			if i < verb && !slices.Contains([]string{"-o", "--control=/s"}, f[0]) {
				continue
			}
			args = append(args, f...)
		}
		if verb == len(order) {
			args = append(args, "generate")
		}
		if prompt == len(order) {
			args = append(args, "text")
		}
		app := shell{}.app(io.Discard, io.Discard)
		var got string
		for _, c := range app.Commands {
			if c.Name == "generate" {
				c.Action = func(c *cli.Context) error {
					got = strings.Join([]string{c.String("output"), c.String("control"), c.Args().First()}, " ")
					for _, f := range args {
						if f == "-n" && c.Int("max-tokens") != 5 || f == "--temperature" && c.Float64("temperature") != 0 || f == "--ignore-eos" && !c.Bool("ignore-eos") {
							t.Fatalf("%q: %s was lost", args, f)
						}
					}
					return nil
				}
			}
		}
		arranged, err := arrange(app, args)
		if err != nil {
			t.Fatal(err)
		}
		if err := app.Run(append([]string{"kevlard"}, arranged...)); err != nil {
			t.Fatal(err)
		}
		if got != "json /s text" {
			t.Fatalf("%q: the verb saw %q", args, got)
		}
	})
}
