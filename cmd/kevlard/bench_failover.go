package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kevlard/kevlard/internal/bench"
	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/netfault"
)

// dropGroups is the first of the group ids that the daemons run in while packets of
// one of them are dropped. Ids so high belong to nobody on ordinary systems.
const dropGroups = 61100

func (sh shell) benchFailoverCommand() *cli.Command {
	return &cli.Command{
		Name:  "failover",
		Usage: "pauses that clients see when stage hosts break under load",
		Description: "Streams with contexts of many lengths arrive at a fixed rate at a gateway while the\n" +
			"hosts are broken one after another, each while a stream runs through it; every text is\n" +
			"compared with an unbroken run. recovery = last token before to first token after the\n" +
			"fault; detect = fault to evidence acted on; re-route = to the last prepare answered;\n" +
			"restore = to that token.\n\n" +
			"Then kevlard and a fail-stop system run the same plan: the same requests at the same\n" +
			"times, the same victims. The fail-stop system is static pipelines, one ring each: one\n" +
			"with a dead stage is down until its node is restarted, after --failstop-restart, and\n" +
			"its weights are loaded; its requests start over on another. Its balancer learns of each\n" +
			"fault at once. The ratios are of kevlard to fail-stop: below 1, its clients waited less.\n\n" +
			"drop needs root and iptables: all runs in a network namespace of its own.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "fault", Value: string(bench.Kill), Usage: "`FAULT`: kill (SIGKILL the daemon), stop (SIGSTOP it), drop (its packets vanish), engine-kill (SIGKILL its engine), slow (its engine stands still for --slow-share of each --slow-period)"},
			&cli.IntFlag{Name: "nodes", Value: 8, Usage: "`N` hosts"},
			&cli.IntFlag{Name: "stages", Value: 4, Usage: "`S` stages per pipeline"},
			&cli.BoolFlag{Name: "hot", Usage: "copies wait in the cells of engines, [kv] standby = \"hot\""},
			&cli.IntFlag{Name: "standbys", Value: 1, Usage: "`R` standby copies of each session's KV"},
			&cli.Float64Flag{Name: "rps", Value: 1.5, Usage: "`R` new streams per second"},
			&cli.IntFlag{Name: "faults", Value: 60, Usage: "`F` faults, each of which hits at least one stream"},
			&cli.IntFlag{Name: "compare-faults", Value: 6, Usage: "`F` faults of the comparison with the fail-stop system; 0 leaves it out"},
			&cli.IntFlag{Name: "tokens", Value: 200, Usage: "`T` tokens of each stream, at most"},
			&cli.StringFlag{Name: "context", Value: "50..900", Usage: "`MIN..MAX` tokens of context at the fault"},
			&cli.DurationFlag{Name: "hold", Value: 3 * time.Second, Usage: "`D` from a fault until the host comes back, and no other fault before; not in the comparison"},
			&cli.DurationFlag{Name: "failstop-restart", Value: 10 * time.Second, Usage: "`D` from a fault until the host comes back, in the comparison"},
			&cli.DurationFlag{Name: "calm", Value: 5 * time.Second, Usage: "`D` between two faults of the comparison"},
			&cli.Float64Flag{Name: "slow-share", Value: 0.8, Usage: "`X` of each period that a slow engine stands still, above 0 and below 1"},
			&cli.DurationFlag{Name: "slow-period", Value: 50 * time.Millisecond, Usage: "`D` of a slow engine's standing still and going on"},
			&cli.StringFlag{Name: "model", Value: "fairy", Usage: "`MODEL`: fairy, a preset of model synth, or a GGUF file"},
		},
		Action: sh.runBenchFailover,
	}
}

func (sh shell) runBenchFailover(c *cli.Context) error {
	f, err := failoverOptions(c)
	if err != nil {
		return err
	}
	if f.Breaker.Fault == bench.Drop {
		if !netfault.Inside() {
			return sh.isolated(c.Context)
		}
		if f.Breaker.Wall, err = isolate(c.Context); err != nil {
			return err
		}
		f.Mesh.GroupBase = dropGroups
	}
	if f.Mesh.Model, err = benchModel(c, c.String("model")); err != nil {
		return err
	}
	r, err := f.Run(c.Context)
	if bad, ok := errors.AsType[*bench.ContextsError](err); ok {
		return usageError("--context: %w", bad)
	}
	if err != nil {
		return err
	}
	if wantsJSON(c) {
		err = writeJSON(c.App.Writer, r)
	} else {
		err = printFailover(c.App.Writer, r)
	}
	if err == nil && r.Kevlard.Errors+r.Kevlard.Mismatches > 0 {
		err = fmt.Errorf("%d streams failed and %d differ from the unbroken run", r.Kevlard.Errors, r.Kevlard.Mismatches)
	}
	return err
}

// failoverOptions checks the flags.
func failoverOptions(c *cli.Context) (bench.Failover, error) {
	f := bench.Failover{
		Start: func(_ context.Context, o devmesh.Options) (*devmesh.Mesh, error) { return benchMesh(c, o) },
		Say:   func(format string, args ...any) { fmt.Fprintf(c.App.ErrWriter, format+"\n", args...) },
		Mesh: devmesh.Options{
			Nodes: c.Int("nodes"), Stages: c.Int("stages"), Hot: c.Bool("hot"), Standbys: c.Int("standbys"), GatewayStandbys: []int{c.Int("standbys")},
		},
		Breaker: &bench.Breaker{Share: c.Float64("slow-share"), Period: c.Duration("slow-period")},
		RPS:     c.Float64("rps"), Faults: c.Int("faults"), Compare: c.Int("compare-faults"), Tokens: c.Int("tokens"),
		Hold: c.Duration("hold"), Restart: c.Duration("failstop-restart"), Calm: c.Duration("calm"),
	}
	if err := noArguments(c); err != nil {
		return f, err
	}
	var err error
	if f.Breaker.Fault, err = bench.ParseFault(c.String("fault")); err != nil {
		return f, usageError("%w", err)
	}
	for flag, least := range map[string]int{"nodes": 1, "stages": 1, "faults": 1, "tokens": 1, "standbys": 0, "compare-faults": 0} {
		if err := atLeast(c, flag, least); err != nil {
			return f, err
		}
	}
	for _, flag := range []string{"hold", "failstop-restart", "calm", "slow-period"} {
		if c.Duration(flag) <= 0 {
			return f, usageError("--%s %s: want a positive duration such as 5s", flag, c.Duration(flag))
		}
	}
	if f.RPS <= 0 {
		return f, usageError("--rps %v: want more than 0", f.RPS)
	}
	if s := f.Breaker.Share; s <= 0 || s >= 1 {
		return f, usageError("--slow-share %v: want more than 0 and less than 1", s)
	}
	if f.Mesh.Nodes < 2*f.Mesh.Stages || f.Mesh.Nodes%f.Mesh.Stages != 0 {
		return f, usageError("--nodes %d with --stages %d: want a multiple, at least %d, so that every stage has two holders", f.Mesh.Nodes, f.Mesh.Stages, 2*f.Mesh.Stages)
	}
	f.Contexts, err = parseContexts(c.String("context"))
	return f, err
}

func atLeast(c *cli.Context, flag string, least int) error {
	if c.Int(flag) < least {
		return usageError("--%s %d: want at least %d", flag, c.Int(flag), least)
	}
	return nil
}

// parseContexts reads MIN..MAX. Whether they fit the model shows once it is there.
func parseContexts(text string) (bench.Contexts, error) {
	lo, hi, ok := strings.Cut(text, "..")
	least, err1 := strconv.Atoi(lo)
	most, err2 := strconv.Atoi(hi)
	if !ok || err1 != nil || err2 != nil || least < 1 || most < least {
		return bench.Contexts{}, usageError("--context %s: want MIN..MAX in tokens, such as 50..900", text)
	}
	return bench.Contexts{Min: least, Max: most}, nil
}

// isolated runs this verb again in a network namespace of its own and returns how
// that ended.
func (sh shell) isolated(ctx context.Context) error {
	if err := netfault.Available(); err != nil {
		err = fmt.Errorf("--fault drop: %w", err)
		if errors.Is(err, netfault.ErrNotPermitted) {
			return &exitError{exitRefused, err}
		}
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the kevlard binary: %w", err)
	}
	cmd, err := netfault.Command(ctx, exe, sh.args...)
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = sh.stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if exited, ok := errors.AsType[*exec.ExitError](err); ok && exited.ExitCode() > 0 {
		return &exitError{exited.ExitCode(), errors.New("")} // it has said why
	}
	if err != nil {
		return fmt.Errorf("run in a network namespace: %w", err)
	}
	return nil
}

// isolate prepares the namespace that isolated made.
func isolate(ctx context.Context) (netfault.Wall, error) {
	if err := netfault.Enter(); err != nil {
		return netfault.Wall{}, err
	}
	return netfault.Build(ctx)
}
