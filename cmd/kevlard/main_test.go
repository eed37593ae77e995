package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/kevlard/kevlard/engine"
	"github.com/kevlard/kevlard/model/fairy"
)

// asProgram in the environment makes the test binary kevlard itself.
const asProgram = "KEVLARD_TEST_IS_PROGRAM"

// TestMain lets the test binary be the engine process of the agents it runs, and a
// process of kevlard.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	if len(os.Args) == 2 && os.Args[1] == "engine" {
		if err := engine.Serve(context.Background()); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(engine.ExitCode(err))
		}
		return
	}
	os.Exit(m.Run())
}

// result is what a run of the program left.
type result struct {
	code           int
	stdout, stderr string
}

// program runs kevlard with the given arguments.
func program(t *testing.T, env []string, stdin string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, env, strings.NewReader(stdin), &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// fairyFile writes the bundled model to a directory of the test.
func fairyFile(t *testing.T) string {
	t.Helper()
	path := t.TempDir() + "/fairy-7m-q8_0.gguf"
	if err := os.WriteFile(path, fairy.GGUF(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
