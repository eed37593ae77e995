package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"golang.org/x/sys/unix"
)

// rereadConfig takes over what can change while the agent runs, and logs what
// cannot. A configuration with mistakes changes nothing.
func (a *agent) rereadConfig() {
	notifyReloading()
	defer systemd.SdNotify(false, systemd.SdNotifyReady)
	// A key must be taken away even where the configuration has a mistake.
	for _, err := range parts(a.api.Reload()) {
		a.log.Error("not reloaded: the old one stays in effect", "error", err)
	}
	fresh, err := a.reload()
	if problems, ok := errors.AsType[problemList](err); ok {
		for _, p := range problems {
			a.log.Error("mistake in the configuration", "problem", p.String())
		}
		err = fmt.Errorf("%d mistakes", len(problems))
	}
	if err != nil {
		a.log.Error("configuration not reloaded: the old one stays in effect", "error", err)
		return
	}
	a.level.Set(parseLevel(fresh.Log.Level))
	a.log.Info("configuration reloaded", "log.level", fresh.Log.Level)
	old := a.cfg.Fields()
	for i, f := range fresh.Fields() {
		if f.Live != config.LiveValue && f.Text() != old[i].Text() {
			a.log.Warn("changed value needs a restart", "key", f.Key, "in effect", old[i].Text(), "configured", f.Text())
		}
	}
}

// parts takes joined errors apart, so that each has its own line in the log.
func parts(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// notifyReloading tells systemd, with the time that Type=notify-reload requires.
// Without systemd it does nothing.
func notifyReloading() {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return
	}
	_, _ = systemd.SdNotify(false, "RELOADING=1\nMONOTONIC_USEC="+strconv.FormatInt(now.Nano()/1000, 10)) // a lost notice harms nothing
}
