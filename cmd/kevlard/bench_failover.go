package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

func benchFailoverCommand() *cli.Command {
	return &cli.Command{
		Name:  "failover",
		Usage: "pauses that clients see when stage hosts break under load",
		Description: "Streams arrive at a fixed rate at a gateway while the hosts are broken one after\n" +
			"another, each while streams run through it; every text is compared with an unbroken\n" +
			"run. recovery = last token before to first token after the fault; detect = fault to\n" +
			"evidence acted on; re-route = to the last prepare answered; restore = to that token.\n" +
			"The fail-stop baseline is not run yet, so its block and the ratios are left out.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "fault", Value: faultKill, Usage: "`FAULT`: kill (SIGKILL the daemon), stop (SIGSTOP it for --hold), engine-kill (SIGKILL its engine)"},
			&cli.IntFlag{Name: "nodes", Value: 8, Usage: "`N` hosts"},
			&cli.IntFlag{Name: "stages", Value: 4, Usage: "`S` stages per pipeline"},
			&cli.Float64Flag{Name: "rps", Value: 1, Usage: "`R` new streams per second"},
			&cli.IntFlag{Name: "faults", Value: 30, Usage: "`F` faults"},
			&cli.IntFlag{Name: "tokens", Value: 200, Usage: "`T` tokens of each stream"},
			&cli.DurationFlag{Name: "hold", Value: 3 * time.Second, Usage: "`D` from a fault until what was stopped or killed comes back, and no other fault before"},
			&cli.StringFlag{Name: "model", Value: "fairy", Usage: "`MODEL`: fairy, a preset of model synth, or a GGUF file"},
		},
		Action: runBenchFailover,
	}
}

// failoverReport is the JSON of bench failover.
type failoverReport struct {
	Nodes      int          `json:"nodes"`
	Stages     int          `json:"stages"`
	RPS        float64      `json:"rps"`
	Requests   int          `json:"requests"`
	Faults     int          `json:"faults"`
	Recoveries int          `json:"recoveries"`
	Unrecorded int          `json:"unrecorded"` // streams through a victim without a recovery in the event log
	Fault      string       `json:"fault"`
	RecoveryMS recoveryMS   `json:"recovery_ms"`
	Kevlard    outcome      `json:"kevlard"`
	Failstop   *outcome     `json:"failstop,omitempty"` // not run yet
	Each       []recoveryOf `json:"each"`
}

type recoveryMS struct {
	P50        float64 `json:"p50"`
	P99        float64 `json:"p99"`
	Max        float64 `json:"max"`
	DetectP50  float64 `json:"detect_p50"`
	ReroutP50  float64 `json:"reroute_p50"`
	RestoreP50 float64 `json:"restore_p50"`
	DetectP99  float64 `json:"detect_p99"`
	ReroutP99  float64 `json:"reroute_p99"`
	RestoreP99 float64 `json:"restore_p99"`
}

type outcome struct {
	Errors     int     `json:"errors"`
	Mismatches int     `json:"token_mismatches"`
	TTFT       meanP99 `json:"ttft_ms"`
	Latency    meanP99 `json:"latency_ms"`
}

type meanP99 struct {
	Mean float64 `json:"mean"`
	P99  float64 `json:"p99"`
}

// recoveryOf is one stream that ran through a victim.
type recoveryOf struct {
	Victim    string  `json:"victim"`
	Cause     string  `json:"cause"`
	AtToken   int     `json:"at_token"`
	GapMS     float64 `json:"gap_ms"`
	DetectMS  float64 `json:"detect_ms"`
	RerouteMS float64 `json:"reroute_ms"`
	RestoreMS float64 `json:"restore_ms"`
}

func runBenchFailover(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	if err := checkFault(c.String("fault")); err != nil {
		return err
	}
	for _, flag := range []string{"nodes", "stages", "faults", "tokens"} {
		if c.Int(flag) < 1 {
			return usageError("--%s %d: want at least 1", flag, c.Int(flag))
		}
	}
	if c.Float64("rps") <= 0 {
		return usageError("--rps %v: want more than 0", c.Float64("rps"))
	}
	if c.Int("nodes") < 2*c.Int("stages") {
		return usageError("--nodes %d with --stages %d: want at least %d, so that every stage has two holders", c.Int("nodes"), c.Int("stages"), 2*c.Int("stages"))
	}
	path, err := benchModel(c, c.String("model"))
	if err != nil {
		return err
	}
	mesh, err := benchMesh(c, devmesh.Options{Nodes: c.Int("nodes"), Stages: c.Int("stages"), Gateways: 1, Model: path})
	if err != nil {
		return err
	}
	b := failoverBench{
		mesh: mesh, client: load.NewClient(mesh.Entry().APIURL()), fault: c.String("fault"), hold: c.Duration("hold"),
		say: func(format string, args ...any) { fmt.Fprintf(c.App.ErrWriter, format+"\n", args...) },
	}
	r, err := b.run(c.Context, c.Float64("rps"), c.Int("faults"), c.Int("tokens"))
	if err := errors.Join(err, mesh.Close()); err != nil {
		return err
	}
	r.Nodes, r.Stages, r.RPS, r.Fault = c.Int("nodes"), c.Int("stages"), c.Float64("rps"), b.fault
	if wantsJSON(c) {
		err = writeJSON(c.App.Writer, r)
	} else {
		err = printFailover(c, r)
	}
	if err == nil && r.Kevlard.Errors+r.Kevlard.Mismatches > 0 {
		err = fmt.Errorf("%d streams failed and %d differ from the unbroken run", r.Kevlard.Errors, r.Kevlard.Mismatches)
	}
	return err
}

func printFailover(c *cli.Context, r failoverReport) error {
	w := c.App.Writer
	fmt.Fprintf(w, "%d faults (%s), %d requests at %g/s, %d recoveries, %d errors, %d mismatches\n\n",
		r.Faults, r.Fault, r.Requests, r.RPS, r.Recoveries, r.Kevlard.Errors, r.Kevlard.Mismatches)
	t := newTable("MS", "P50", "P99")
	row := func(name string, p50, p99 float64) { t.row(name, fmt.Sprintf("%.1f", p50), fmt.Sprintf("%.1f", p99)) }
	row("recovery", r.RecoveryMS.P50, r.RecoveryMS.P99)
	row("detect", r.RecoveryMS.DetectP50, r.RecoveryMS.DetectP99)
	row("re-route", r.RecoveryMS.ReroutP50, r.RecoveryMS.ReroutP99)
	row("restore", r.RecoveryMS.RestoreP50, r.RecoveryMS.RestoreP99)
	if err := t.write(w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d streams through a victim have no recovery recorded\nfirst token %.1f ms mean, %.1f p99; whole stream %.0f ms mean, %.0f p99\nfail-stop baseline: not run\n",
		r.Unrecorded, r.Kevlard.TTFT.Mean, r.Kevlard.TTFT.P99, r.Kevlard.Latency.Mean, r.Kevlard.Latency.P99)
	return err
}

// failoverBench breaks hosts of one mesh under load.
type failoverBench struct {
	mesh   *devmesh.Mesh
	client *load.Client
	fault  string
	hold   time.Duration
	say    func(format string, args ...any)

	variants   []load.Request
	references []load.Result // the unbroken run of each variant
}

func (b *failoverBench) run(ctx context.Context, rps float64, faults, tokens int) (failoverReport, error) {
	if err := b.collectReferences(ctx, tokens); err != nil {
		return failoverReport{}, err
	}
	loadCtx, stopArrivals := context.WithCancel(ctx)
	arrivals := make(chan []arrival, 1)
	go func() { arrivals <- b.openLoop(ctx, loadCtx, rps) }()
	var broken []breakage
	var err error
	for i := 0; i < faults && err == nil; i++ {
		var one breakage
		if one, err = b.breakOne(ctx, b.mesh.Hosts()[i%len(b.mesh.Hosts())]); err == nil {
			broken = append(broken, one)
			b.say("fault %d of %d: %s, %d streams ran through it", i+1, faults, one.victim, len(one.sessions))
		}
	}
	stopArrivals()
	streams := <-arrivals
	if err != nil {
		return failoverReport{}, err
	}
	events, err := b.mesh.Entry().Events(ctx)
	if err != nil {
		return failoverReport{}, err
	}
	if err := checkComplete(events, broken); err != nil {
		return failoverReport{}, err
	}
	return b.judge(streams, broken, events), nil
}

// collectReferences runs every variant once without faults.
func (b *failoverBench) collectReferences(ctx context.Context, tokens int) error {
	for i, prompt := range benchPrompts() {
		r := load.Request{Model: b.mesh.ModelName(), Prompt: prompt, MaxTokens: tokens, Seed: uint64(i), IgnoreEOS: true}
		if i%2 == 1 {
			r.Temperature = 0.8
		}
		b.variants = append(b.variants, r)
	}
	began := time.Now()
	for i, res := range streamAll(ctx, b.client, b.variants) {
		if res.Err != nil {
			return fmt.Errorf("collect reference %d: %w", i, res.Err)
		}
		b.references = append(b.references, res)
	}
	b.say("%d unbroken references in %s", len(b.references), secondsOf(time.Since(began)))
	return nil
}

// arrival is one stream of the load.
type arrival struct {
	variant int
	result  load.Result
}

// openLoop starts streams at a fixed rate, whether or not earlier ones have ended,
// until arrivals ends; then it waits for those under way.
func (b *failoverBench) openLoop(ctx, arrivals context.Context, rps float64) []arrival {
	tick := time.NewTicker(time.Duration(float64(time.Second) / rps))
	defer tick.Stop()
	results := make(chan arrival)
	var out []arrival
	running := 0
	for open := true; open || running > 0; {
		select {
		case <-arrivals.Done():
			open, arrivals = false, context.Background()
		case a := <-results:
			running--
			out = append(out, a)
		case <-tick.C:
			if !open {
				continue
			}
			v := (len(out) + running) % len(b.variants)
			running++
			go func() { results <- arrival{v, b.client.Stream(ctx, b.variants[v], nil)} }()
		}
	}
	return out
}
