package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

const (
	demoHosts    = 8
	demoStages   = 4
	demoPrompt   = "Once upon a time there was a little girl who"
	demoTokens   = 220
	demoKillAt   = 60 // tokens the client has seen when the host is killed
	demoVictim   = 2  // index of the stage whose host is killed: one in the middle
	demoSeed     = 10
	demoDeadline = 2 * time.Minute // for one story; a stuck mesh fails the demo instead of hanging it
)

func demoCommand() *cli.Command {
	return &cli.Command{
		Name:  "demo",
		Usage: "see a host die in the middle of a story",
		Description: "Starts 8 hosts (2 pipelines of 4 stages) and a gateway on loopback, streams a story\n" +
			"through the gateway, kills the host of one stage in the middle of it with SIGKILL,\n" +
			"and compares the text with an unbroken run. Exit 0 only if they are the same.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "no-kill", Usage: "kill nothing"},
			&cli.Uint64Flag{Name: "seed", Value: demoSeed, Usage: "`SEED` of the story"},
			&cli.StringFlag{Name: "dir", DefaultText: "a temporary directory", Usage: "keep logs and data in `DIR`"},
			&cli.IntFlag{Name: "base-port", DefaultText: "the first from 18080 that is free", Usage: "API port `P`"},
		},
		Action: runDemo,
	}
}

// demoReport is the demo's result and the shape of its JSON.
type demoReport struct {
	Text       string      `json:"text"`
	Tokens     int         `json:"tokens"`
	Killed     *demoKill   `json:"killed,omitempty"`
	Failovers  []demoPhase `json:"failovers"`
	RecoveryMS float64     `json:"recovery_ms"` // longest pause the client saw from the kill on
	TypicalMS  float64     `json:"typical_ms"`  // median pause between two pieces of text
	TokenExact bool        `json:"token_exact"`
}

type demoKill struct {
	Node    string `json:"node"`
	PID     int    `json:"pid"`
	AtToken int    `json:"at_token"`
}

type demoPhase struct {
	Cause     string  `json:"cause"`
	Node      string  `json:"node"`
	DetectMS  float64 `json:"detect_ms"`
	RerouteMS float64 `json:"reroute_ms"`
	RestoreMS float64 `json:"restore_ms"`
	Known     int     `json:"known"` // tokens known when the new route began
	From      int     `json:"from"`  // the position it began at
}

func runDemo(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the kevlard binary: %w", err)
	}
	base := c.Int("base-port")
	if base == 0 {
		if base, err = devmesh.FreeBase(devmesh.DefaultBasePort, demoHosts+1); err != nil {
			return err
		}
	}
	teller := newTeller(c)
	teller.note("starting %d hosts (%d pipelines of %d stages) and a gateway on 127.0.0.11-%d\n",
		demoHosts, demoHosts/demoStages, demoStages, 10+demoHosts+1)
	began := time.Now()
	mesh, err := startMesh(c, devmesh.Options{
		Exe: exe, Nodes: demoHosts, Stages: demoStages, Gateways: 1,
		Dir: c.String("dir"), BasePort: base, LogLevel: c.String("log-level"),
	})
	if err != nil {
		return err
	}
	d := demo{mesh: mesh, teller: teller, seed: c.Uint64("seed"), kill: !c.Bool("no-kill")}
	report, err := d.play(c.Context, began)
	if err := errors.Join(err, mesh.Close()); err != nil {
		return err
	}
	if wantsJSON(c) {
		if err := writeJSON(c.App.Writer, report); err != nil {
			return err
		}
	}
	if !report.TokenExact {
		return errors.New("the text is not that of the unbroken run")
	}
	return nil
}

type demo struct {
	mesh   *devmesh.Mesh
	teller *teller
	seed   uint64
	kill   bool
}

// play tells the story twice, with and without a death, and compares.
func (d *demo) play(ctx context.Context, began time.Time) (demoReport, error) {
	if err := readyMesh(ctx, d.mesh); err != nil {
		return demoReport{}, err
	}
	d.teller.pipelines(d.mesh, time.Since(began))
	broken, kill, err := d.story(ctx)
	if err != nil {
		return demoReport{}, err
	}
	report := demoReport{Text: broken.Text(), Tokens: broken.Tokens, Killed: kill.done, Failovers: []demoPhase{}}
	if d.kill {
		report.RecoveryMS = load.Millis(broken.LongestGap(kill.at, broken.Ended))
		if report.Failovers, err = d.phases(ctx, broken.Session); err != nil {
			return demoReport{}, err
		}
		if len(report.Failovers) == 0 {
			return demoReport{}, fmt.Errorf("%s was killed, but the story did not run through it any more: nothing was shown", kill.done.Node)
		}
	}
	report.TypicalMS = load.Millis(load.Quantile(broken.Gaps(), 0.5))
	d.teller.note("\n\nthe same seed again, unbroken, on the hosts that are left ... ")
	unbroken := load.NewClient(d.mesh.Entry().APIURL()).Stream(ctx, d.request(), nil)
	if unbroken.Err != nil {
		return demoReport{}, fmt.Errorf("tell the story unbroken: %w", unbroken.Err)
	}
	d.teller.note("%d tokens in %.1f s\n", unbroken.Tokens, unbroken.Ended.Sub(unbroken.Sent).Seconds())
	report.TokenExact = broken.Same(unbroken)
	d.teller.verdict(report)
	return report, nil
}

func (d *demo) request() load.Request {
	return load.Request{
		Model: d.mesh.ModelName(), Prompt: demoPrompt, MaxTokens: demoTokens,
		Temperature: 0.7, TopK: 40, TopP: 0.9, Seed: d.seed, IgnoreEOS: true,
	}
}

// demoKilling is what became of the plan to kill a host.
type demoKilling struct {
	done *demoKill
	at   time.Time
	err  error
}

// story streams the story to the terminal and kills a host on its way. The killer
// works beside the stream, so that the client's clock is not disturbed.
func (d *demo) story(ctx context.Context) (load.Result, demoKilling, error) {
	ctx, cancel := context.WithTimeout(ctx, demoDeadline)
	defer cancel()
	reached := make(chan string, 1) // the session, once the client has seen enough
	killed := make(chan demoKilling, 1)
	go func() {
		session, ok := <-reached
		if !ok {
			killed <- demoKilling{}
			return
		}
		killed <- d.killHost(ctx, session)
	}()
	d.teller.text(demoPrompt)
	seen := 0
	res := load.NewClient(d.mesh.Entry().APIURL()).Stream(ctx, d.request(), func(session string, p load.Piece) {
		if seen++; seen == demoKillAt && d.kill {
			reached <- session
		}
		d.teller.text(p.Text)
	})
	close(reached)
	k := <-killed
	switch {
	case res.Err != nil:
		return res, k, fmt.Errorf("tell the story: %w", res.Err)
	case k.err != nil:
		return res, k, k.err
	case d.kill && k.done == nil:
		return res, k, fmt.Errorf("the story ended after %d pieces of text, before the kill at %d: try another --seed", seen, demoKillAt)
	}
	return res, k, nil
}

// killHost kills the host of one middle stage of the session's route. It sends the
// signal itself, since the pause is measured, and an installed kevlard has no scripts.
func (d *demo) killHost(ctx context.Context, session string) demoKilling {
	sessions, err := d.mesh.Entry().Sessions(ctx)
	if err != nil {
		return demoKilling{err: err}
	}
	for _, s := range sessions {
		if s.ID != session || len(s.Route) <= demoVictim {
			continue
		}
		victim := d.mesh.Named(s.Route[demoVictim])
		if victim == nil {
			return demoKilling{err: fmt.Errorf("the route of session %s names %s, which is no node of this mesh", session, s.Route[demoVictim])}
		}
		k := demoKilling{done: &demoKill{Node: victim.Name(), PID: victim.PID(), AtToken: demoKillAt}, at: time.Now()}
		k.err = victim.Kill(syscall.SIGKILL)
		d.teller.line("kill -9 %d: %s, host of stage %d of 4, is dead", k.done.PID, k.done.Node, demoVictim+1)
		return k
	}
	return demoKilling{err: fmt.Errorf("%s does not list session %s, so nothing was killed", d.mesh.Entry().Name(), session)}
}

// phases returns the failovers of one session from its owner's event log.
func (d *demo) phases(ctx context.Context, session string) ([]demoPhase, error) {
	events, err := d.mesh.Entry().Events(ctx)
	if err != nil {
		return nil, err
	}
	out := []demoPhase{}
	for _, e := range events {
		if f := e.Failover; f != nil && e.Session == session {
			out = append(out, demoPhase{e.Cause, e.Peer, f.DetectMS, f.RerouteMS, f.RestoreMS, f.Known, f.From})
		}
	}
	return out, nil
}
