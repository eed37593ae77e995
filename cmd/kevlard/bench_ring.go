package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kevlard/kevlard/internal/ringbench"
	"github.com/kevlard/kevlard/membership"
)

func benchRingCommand() *cli.Command {
	return &cli.Command{
		Name:  "ring",
		Usage: "detection time, false deaths and traffic of large rings",
		Description: "Runs the members of a ring in this process, over a network in memory and in real time: lets\n" +
			"hosts vanish, one after another, and then loses packets. Next to kevlard's profile it runs\n" +
			"memberlist with its own default settings for a LAN. FIRST is from a host's vanishing until one\n" +
			"member shows it as dead, EVERYONE until all do; derived are the same times by arithmetic.\n" +
			"A thousand members take most of two cores; if this host's timers were late, it says so.",
		Flags: []cli.Flag{
			&cli.IntSliceFlag{Name: "nodes", Value: cli.NewIntSlice(100, 1000), Usage: "`N` members, or several rings one after another, comma separated"},
			&cli.StringFlag{Name: "profile", Value: "lan", Usage: "kevlard's `PROFILE`: lan or wan"},
			&cli.IntFlag{Name: "kills", Value: 30, Usage: "`N` hosts vanish"},
			&cli.DurationFlag{Name: "idle", Value: time.Minute, Usage: "`D` of undisturbed traffic"},
			&cli.DurationFlag{Name: "soak", Value: time.Minute, Usage: "`D` with loss of packets"},
			&cli.Float64Flag{Name: "loss", Value: 5, Usage: "`PERCENT` of the packets lost then"},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "`N` chooses victims and losses"},
		},
		Action: runBenchRing,
	}
}

// lateMS is the lateness of timers beyond which figures are those of the machine.
const lateMS = 50

// ringReport is the JSON of bench ring.
type ringReport struct {
	Results []ringbench.Result `json:"results"`
}

func runBenchRing(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	cfg := ringbench.Config{
		Kills: c.Int("kills"), Idle: c.Duration("idle"), Soak: c.Duration("soak"), Loss: c.Float64("loss") / 100, Seed: c.Uint64("seed"),
		Progress: func(s string) { fmt.Fprintln(c.App.ErrWriter, s) },
	}
	switch {
	case cfg.Kills < 1 || cfg.Kills > 10_000:
		return usageError("--kills %d: want 1 to 10000", cfg.Kills)
	case cfg.Idle < 0 || cfg.Soak < 0 || cfg.Idle > time.Hour || cfg.Soak > time.Hour:
		return usageError("--idle %v --soak %v: want 0s to 1h", cfg.Idle, cfg.Soak)
	case cfg.Loss < 0 || cfg.Loss > 0.5:
		return usageError("--loss %v: want 0 to 50", 100*cfg.Loss)
	}
	if p := c.String("profile"); p != "lan" && p != "wan" {
		return usageError("--profile %q: want lan or wan", p)
	}
	for _, n := range c.IntSlice("nodes") {
		if n < 3 || n > 4000 {
			return usageError("--nodes %d: want 3 to 4000", n)
		}
	}
	var r ringReport
	for _, n := range c.IntSlice("nodes") {
		for _, settings := range []string{c.String("profile"), membership.MemberlistLAN} {
			cfg.Members, cfg.Settings = n, settings
			fmt.Fprintf(c.App.ErrWriter, "%d members, settings %s\n", n, settings)
			one, err := ringbench.Run(c.Context, cfg)
			if err != nil {
				return fmt.Errorf("ring of %d with settings %s: %w", n, settings, err)
			}
			if one.HostLag.P99 > lateMS {
				fmt.Fprintf(c.App.ErrWriter, "kevlard: this host's timers were late, by up to %.0f ms in 99 %% of the cases: these are figures of an overloaded machine\n", one.HostLag.P99)
			}
			r.Results = append(r.Results, one)
		}
	}
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, r)
	}
	t := newTable("NODES", "SETTINGS", "FIRST p50/p99 s", "DERIVED", "EVERYONE p50/p99 s", "DERIVED", "FALSE DEATHS", "AT LOSS", "PACKETS/NODE/S", "BYTES/NODE/S", "LATE ms")
	pair := func(q ringbench.Quantiles) string { return fmt.Sprintf("%.1f / %.1f", q.P50/1000, q.P99/1000) }
	for _, x := range r.Results {
		t.row(strconv.Itoa(x.Members), x.Settings, pair(x.First), pair(x.DerivedFirst), pair(x.Everyone), pair(x.DerivedEveryone),
			strconv.FormatUint(x.FalseDeaths, 10), strconv.FormatUint(x.LossFalseDeaths, 10),
			fmt.Sprintf("%.1f", x.Packets), fmt.Sprintf("%.0f", x.PacketBytes+x.StreamBytes), fmt.Sprintf("%.0f", x.HostLag.P99))
	}
	return t.write(c.App.Writer)
}
