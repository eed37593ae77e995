// Command compare measures one kevlard node against ollama on this machine: the same
// models, prompts, threads and number of tokens through both servers' HTTP
// APIs, turn and turn about. It is started by `make compare`, which builds ollama from
// its Go module first.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "compare: %v\n", err)
		os.Exit(1)
	}
}

// settings are the flags.
type settings struct {
	exe, ollama string
	models      []string
	threads     []int
	prompts     []int
	sessions    []int
	pairs       int
	tokens      int
	temperature float64
}

func parse(args []string) (settings, error) {
	var s settings
	var threads, prompts, sessions, models string
	f := flag.NewFlagSet("compare", flag.ContinueOnError)
	f.StringVar(&s.exe, "kevlard", "bin/kevlard", "the kevlard `binary`")
	f.StringVar(&s.ollama, "ollama", "", "the ollama `binary`, with ../lib/ollama beside it")
	f.StringVar(&models, "models", "", "GGUF `files`, by commas")
	f.StringVar(&threads, "threads", "1,2", "compute threads of both, by commas")
	f.StringVar(&prompts, "prompts", "100,500", "prompt lengths in tokens, about, by commas")
	f.StringVar(&sessions, "sessions", "1,4", "streams at once, by commas")
	f.IntVar(&s.pairs, "pairs", 10, "runs of each side")
	f.IntVar(&s.tokens, "tokens", 128, "tokens of each answer")
	f.Float64Var(&s.temperature, "temperature", 0, "0 is greedy; above, both draw from the 40 likeliest")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	var errs []error
	numbers := func(name, list string) (out []int) {
		for _, t := range strings.Split(list, ",") {
			n, err := strconv.Atoi(t)
			if err != nil || n < 1 {
				errs = append(errs, fmt.Errorf("-%s %s: want whole numbers above 0, by commas", name, list))
			}
			out = append(out, n)
		}
		return out
	}
	s.threads, s.prompts, s.sessions = numbers("threads", threads), numbers("prompts", prompts), numbers("sessions", sessions)
	for name, n := range map[string]int{"pairs": s.pairs, "tokens": s.tokens} {
		if n < 2 {
			errs = append(errs, fmt.Errorf("-%s %d: want at least 2", name, n))
		}
	}
	for name, v := range map[string]string{"ollama": s.ollama, "models": models} {
		if v == "" {
			errs = append(errs, fmt.Errorf("-%s is missing", name))
		}
	}
	s.models = strings.Split(models, ",")
	return s, errors.Join(errs...)
}

func run(ctx context.Context, args []string) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	fmt.Println("| model | threads | prompt | streams | kevlard tok/s | ollama tok/s | ratio (quartiles) | kevlard TTFT ms | ollama TTFT ms | ratio (quartiles) |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|")
	for _, m := range s.models {
		for _, t := range s.threads {
			if err := s.compare(ctx, m, t); err != nil {
				return err
			}
		}
	}
	fmt.Fprintln(os.Stderr, "tok/s: all tokens after each stream's first, by the time from the first token of all to the last; medians of", s.pairs,
		"runs each. ratio: kevlard/ollama of adjacent runs, median and quartiles: above 1 kevlard has more tok/s, below 1 it has the shorter TTFT")
	return nil
}

// compare starts both servers with one model and thread count, and prints a row for
// each prompt length and number of streams.
func (s settings) compare(ctx context.Context, model string, threads int) (err error) {
	ours, err := startKevlard(ctx, s, model, threads)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.close()) }()
	theirs, err := startOllama(ctx, s, model, threads)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, theirs.close()) }()
	seed := uint64(0)
	for _, length := range s.prompts {
		words, err := wordsFor(ctx, theirs, length)
		if err != nil {
			return err
		}
		for _, n := range s.sessions {
			var a, b []sample
			for i := -1; i < s.pairs; i++ { // the first pair warms both up
				texts := prompts(seed, n, words)
				seed += uint64(n)
				x, err := together(ctx, ours, texts, s.tokens)
				if err != nil {
					return fmt.Errorf("kevlard: %w", err)
				}
				y, err := together(ctx, theirs, texts, s.tokens)
				if err != nil {
					return fmt.Errorf("ollama: %w", err)
				}
				if i >= 0 {
					a, b = append(a, x), append(b, y)
				}
			}
			fmt.Println(row(model, threads, n, a, b))
		}
	}
	return nil
}
