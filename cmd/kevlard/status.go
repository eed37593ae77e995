package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/urfave/cli/v2"
)

// checkTimeout bounds status --check: health checkers do not wait.
const checkTimeout = 900 * time.Millisecond

// statusTimeout bounds status, for people: a busy host gets more time.
const statusTimeout = 10 * time.Second

func (sh shell) statusCommand() *cli.Command {
	return &cli.Command{
		Name: "status", Usage: "this node's health: what is wrong and what to do",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "check", Usage: "one line within a second; exit 0 if ready, 1 if not"}},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			if c.Bool("check") {
				return sh.statusCheck(c)
			}
			s, err := askStatus(c.Context, sh.client(c), statusTimeout)
			if err != nil {
				return err
			}
			if wantsJSON(c) {
				return writeJSON(c.App.Writer, s)
			}
			return writeStatus(c.App.Writer, s)
		},
	}
}

// askStatus says what to do about a daemon that is there and does not answer.
func askStatus(ctx context.Context, client *api.Client, limit time.Duration) (report.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	s, err := client.Status(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return s, fmt.Errorf("the daemon did not answer within %v: see its log (journalctl -u kevlard), or restart it: %w", limit, err)
	}
	return s, err
}

func (sh shell) statusCheck(c *cli.Context) error {
	ctx, cancel := context.WithTimeout(c.Context, checkTimeout)
	defer cancel()
	s, err := sh.client(c).Status(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		// It is there, and not ready: that no daemon is there is another exit code.
		fmt.Fprintf(c.App.Writer, "not ready: the daemon did not answer within %v\n", checkTimeout)
		return errSilent
	}
	if err != nil {
		return err
	}
	word := "ready"
	if !s.Ready {
		word = "not ready: " + s.Reason
	}
	fmt.Fprintf(c.App.Writer, "%s: %s\n", s.Node, word)
	if !s.Ready {
		return errSilent
	}
	return nil
}

func writeStatus(w io.Writer, s report.Status) error {
	ready := "yes"
	if !s.Ready {
		ready = "no: " + s.Reason
	}
	t := newTable("node", s.Node)
	t.row("ring", s.Ring)
	t.row("role", s.Role)
	t.row("ready", ready)
	switch {
	case s.Stopping:
		t.row("stopping", "yes: no new sessions are taken, and it leaves the ring when those there are have ended")
	case s.Draining:
		t.row("draining", "yes: no new sessions are taken; undo with kevlard drain --undo")
	}
	t.row("version", fmt.Sprintf("%s, boot %s, pid %d, up %v", s.Version, s.Boot, s.PID, (time.Duration(s.UptimeMS)*time.Millisecond).Round(time.Second)))
	t.row("members", membersText(s.Members))
	t.row("sessions", fmt.Sprintf("%d owned, %d held by the stages here", s.Sessions.Owned, s.Sessions.Hosted))
	t.row("stages", stagesText(s.Stages))
	for _, e := range s.Engines {
		t.row("engine", fmt.Sprintf("pid %d, %s, layers %d-%d", e.PID, e.Device, e.Lo, e.Hi))
	}
	for _, g := range s.GPUs {
		t.row("gpu", gpuText(g))
	}
	for _, what := range s.NotRun {
		t.row("not run", what)
	}
	for _, f := range s.Fetches {
		t.row("fetching", fetchText(f))
	}
	if err := t.write(w); err != nil {
		return err
	}
	if len(s.Problems) == 0 {
		fmt.Fprintln(w, "\nno problems known")
		return nil
	}
	fmt.Fprintln(w, "\nproblems:")
	for _, p := range s.Problems {
		fmt.Fprintf(w, "  %s\n    -> %s\n", p.What, p.Fix)
	}
	return nil
}

// gpuText describes a GPU in one line.
func gpuText(g report.GPU) string {
	text := fmt.Sprintf("%d, %s, %s", g.Index, cmp.Or(g.Name, g.ID), g.State)
	if g.Reason != "" {
		text += ": " + g.Reason
	}
	if g.MemoryTotal > 0 {
		text += fmt.Sprintf(", %s of %s in use", byteSize(g.MemoryUsed), byteSize(g.MemoryTotal))
	}
	if g.Temperature > 0 {
		text += fmt.Sprintf(", %d degrees", g.Temperature)
	}
	switch {
	case g.MIG:
		text += ", cut by MIG"
	case !g.Used:
		text += ", not used"
	}
	return text
}

// fetchText says how far a fetch is, and with which unit.
func fetchText(f report.Fetch) string {
	text := fmt.Sprintf("%s, layers %d-%d: %s of %s", cmp.Or(f.Name, f.Model), f.Lo, f.Hi, byteSize(f.Bytes), byteSize(f.Total))
	for _, u := range f.Units {
		if !u.Verified && u.Bytes > 0 {
			text += fmt.Sprintf(", %s %d %%", u.Name, u.Bytes*100/max(u.Total, 1))
		}
	}
	if f.Waits != "" {
		text += ", waits: " + f.Waits
	}
	return text
}

// membersText counts the members that there are: "8 alive, 1 dead".
func membersText(m report.MemberCounts) string {
	var parts []string
	for _, c := range []struct {
		n     int
		state string
	}{{m.Alive, "alive"}, {m.Suspect, "suspect"}, {m.Draining, "draining"}, {m.Isolated, "isolated"}, {m.Dead, "dead"}, {m.Left, "left"}} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.state))
		}
	}
	return strings.Join(parts, ", ")
}
