// Command docrun follows documents word by word: it runs the commands of their fenced
// blocks, in order and in one shell, as a reader would type them, and compares what
// they print with what the document shows.
//
//	docrun -rules FILE [-dir DIR] [-set NAME=VALUE]... DOCUMENT...
//
// What a block is, its language says:
//
//	sh       commands, one a line
//	console  commands behind "$ ", each with the output that follows it
//	text     the output of the last command before it
//	others   nothing to run; a rule may save them as a file
//
// A block without a language is an error, so that nothing is left out by oversight. The
// rules say what the prose around the blocks says (see rules.go). Nothing is left out
// in silence: all that was run and all that was not, with the reason, is printed.
//
// It is run by scripts/readme-check and scripts/systemd-check in a place where the
// commands can do no harm: they are whatever the document says.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

const (
	exitFailed = 1 // a command failed, or printed something else
	exitUsage  = 2 // bad flags, rules or document
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

func run(ctx context.Context, args []string) int {
	flags := flag.NewFlagSet("docrun", flag.ContinueOnError)
	rulesFile := flags.String("rules", "", "the `FILE` with the rules")
	dir := flags.String("dir", ".", "the directory `DIR` in which the first command runs")
	set := map[string]string{}
	flags.Func("set", "`NAME=VALUE`: what the reader puts for the word NAME in commands", func(s string) error {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return errors.New("want NAME=VALUE")
		}
		set[name] = value
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	steps, rules, err := read(*rulesFile, flags.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "docrun:", err)
		return exitUsage
	}
	sh, err := newShell(ctx, *dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "docrun:", err)
		return exitFailed
	}
	r := &runner{shell: sh, rules: rules, set: set, out: os.Stdout}
	if err := errors.Join(r.all(steps), sh.close()); err != nil {
		fmt.Fprintln(os.Stderr, "docrun:", err)
		return exitFailed
	}
	return 0
}

// read loads the rules and the steps of all documents.
func read(rulesFile string, documents []string) ([]step, *rules, error) {
	if rulesFile == "" || len(documents) == 0 {
		return nil, nil, errors.New("want -rules FILE and one document or more")
	}
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		return nil, nil, err
	}
	rules, err := parseRules(string(text))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", rulesFile, err)
	}
	var steps []step
	for _, path := range documents {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
		more, err := parse(path, string(text))
		if err != nil {
			return nil, nil, err
		}
		steps = append(steps, more...)
	}
	return steps, rules, nil
}
