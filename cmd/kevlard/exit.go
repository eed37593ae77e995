package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kevlard/kevlard/api"
	"github.com/urfave/cli/v2"
)

// The exit codes, part of the contract with scripts.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2 // usage or bad config
	exitNoDaemon    = 3 // nothing answers on the control socket
	exitTimeout     = 4
	exitRefused     = 5 // by policy: quorum, capacity, auth
	exitInterrupted = 130
)

// exitError is an error that chooses its exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }
func (e *exitError) ExitCode() int { return e.code }

// usageError says that the command line or the configuration is wrong.
func usageError(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// within says what was tried, unless the error begins with it.
func within(what string, err error) error {
	if strings.HasPrefix(err.Error(), what) {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

// errSilent ends a verb with code 1 when its output has said already what is wrong.
var errSilent = &exitError{exitFailed, errors.New("")}

// exitCode maps an error of a verb to the exit code of the program.
func exitCode(ctx context.Context, err error) int {
	if err == nil {
		return exitDone
	}
	if errors.Is(context.Cause(ctx), errInterrupted) && (errors.Is(err, context.Canceled) || errors.Is(err, errInterrupted)) {
		return exitInterrupted
	}
	if coder, ok := errors.AsType[cli.ExitCoder](err); ok {
		return coder.ExitCode()
	}
	switch {
	case errors.Is(err, api.ErrNoDaemon):
		return exitNoDaemon
	case errors.Is(err, context.DeadlineExceeded):
		return exitTimeout
	}
	if refusal, ok := errors.AsType[*api.Error](err); ok {
		return refusalCode(refusal)
	}
	return exitFailed
}

// refusalCode maps an error that the daemon answered.
func refusalCode(e *api.Error) int {
	if e.Code != nil {
		switch *e.Code {
		case "capacity", "no_route", "draining", "overloaded", "poisoned", "no_quorum", "session_no_quorum":
			return exitRefused
		}
	}
	switch e.Status {
	case 400, 404:
		return exitUsage
	case 401, 403, 409, 429, 503:
		return exitRefused
	case 504:
		return exitTimeout
	}
	return exitFailed
}
