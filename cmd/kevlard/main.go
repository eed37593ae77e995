// Kevlard serves language models over a ring of hosts in such a way that clients
// do not notice when a host dies. This is its one binary: the daemon (agent), the
// engine process that the daemon starts for each device (engine), and the verbs
// that people and scripts use.
//
// Each verb is a function returning its *cli.Command, one verb a file. Everything
// goes through run, which knows neither os.Args nor os.Exit, so that tests drive
// the program the way a shell does.
package main

import (
	"context"
	"log/slog"
	"os"
)

func main() {
	// Ours alone gets its logger handed in; the default one is for ggml's bindings,
	// which tell everybody about the CPU.
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	ctx, stop := interruptible(context.Background())
	code := run(ctx, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
