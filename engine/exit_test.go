package engine

import (
	"errors"
	"fmt"
	"os/exec"
	"testing"
)

// TestExitPoison ends processes in every way that an engine can end and wants the
// work blamed only where it may be at fault.
func TestExitPoison(t *testing.T) {
	exit := func(err error) string { return fmt.Sprintf("exit %d", ExitCode(err)) }
	for _, c := range []struct {
		script string
		poison bool
	}{
		{exit(nil), false},
		{exit(errors.New("any")), true},
		{exit(fmt.Errorf("batch 3: %w: grant fewer cells", ErrNoMemory)), false},
		{exit(errors.Join(ErrNoMemory, errors.New("write to parent"))), false},
		{exit(fmt.Errorf("x: %w", ErrCompute)), true},
		{"kill -ABRT $$", true},
		{"kill -SEGV $$", true},
		{"kill -KILL $$", false},
		{"kill -TERM $$", false},
	} {
		cmd := exec.Command("sh", "-c", c.script)
		err := cmd.Run()
		if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
			t.Fatal(err)
		}
		if got := exitStatus(cmd.ProcessState, ""); got.Poisonous != c.poison {
			t.Errorf("%s: poisonous %v (%v), want %v", c.script, got.Poisonous, got, c.poison)
		}
	}
}
