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
		Description: "Runs the members of a ring in this process, the real ones, over a network in memory: lets hosts\n" +
			"vanish, one after another, and then loses packets. Next to kevlard's profile it runs memberlist\n" +
			"with its own default settings for a LAN. FIRST is from a host's vanishing until one member shows it\n" +
			"as dead, EVERYONE until all do; derived are the same times by arithmetic.\n" +
			"With the virtual clock, the ring's time goes on when all members have done their work: the figures\n" +
			"are those of hosts that are never late, on a network without delay, and a slow or busy machine only\n" +
			"takes longer. With the real one they include this machine: where it is too slow for so many members,\n" +
			"that is said, and false deaths are not counted. When --limit is over no more hosts vanish.",
		Flags: []cli.Flag{
			&cli.IntSliceFlag{Name: "nodes", Value: cli.NewIntSlice(100, 1000), Usage: "`N` members, or several rings one after another, comma separated"},
			&cli.StringFlag{Name: "profile", Value: "lan", Usage: "kevlard's `PROFILE`: lan or wan"},
			&cli.IntFlag{Name: "kills", Value: 30, Usage: "`N` hosts vanish"},
			&cli.DurationFlag{Name: "idle", Value: 30 * time.Second, Usage: "`D` of undisturbed traffic"},
			&cli.DurationFlag{Name: "soak", Value: time.Minute, Usage: "`D` with loss of packets"},
			&cli.Float64Flag{Name: "loss", Value: 5, Usage: "`PERCENT` of the packets lost then"},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "`N` chooses victims and losses"},
			&cli.StringFlag{Name: "clock", Value: "virtual", Usage: "`CLOCK`: virtual or real"},
			&cli.DurationFlag{Name: "limit", Value: 5 * time.Minute, Usage: "`D` by this host's clock for each ring, from where on it comes to its end; 0s: none"},
		},
		Action: runBenchRing,
	}
}

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
		Virtual: c.String("clock") == "virtual", Limit: c.Duration("limit"),
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
	if clock := c.String("clock"); clock != "virtual" && clock != "real" {
		return usageError("--clock %q: want virtual or real", clock)
	}
	if cfg.Limit < 0 {
		return usageError("--limit %v: want 0s (none) or more", cfg.Limit)
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
			if one.Starved {
				fmt.Fprintf(c.App.ErrWriter, "kevlard: warning: this host's timers were late, by up to %.0f ms in 99 %% of the cases, where %v is the most: these are figures of an overloaded machine, and whom it took for dead is not counted: use --clock virtual, or fewer --nodes\n", one.HostLag.P99, ringbench.MaxLag)
			}
			if one.CutShort {
				fmt.Fprintf(c.App.ErrWriter, "kevlard: warning: cut short after --limit %v: %d of %d hosts vanished\n", cfg.Limit, one.Kills, cfg.Kills)
			}
			r.Results = append(r.Results, one)
		}
	}
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, r)
	}
	return ringTable(r).write(c.App.Writer)
}

func ringTable(r ringReport) *table {
	t := newTable("NODES", "SETTINGS", "CLOCK", "DEATHS", "FIRST p50/p99 s", "DERIVED", "EVERYONE p50/p99 s", "DERIVED", "FALSE DEATHS", "AT LOSS", "PACKETS/NODE/S", "BYTES/NODE/S", "LATE ms")
	pair := func(q ringbench.Quantiles) string { return fmt.Sprintf("%.1f / %.1f", q.P50/1000, q.P99/1000) }
	count := func(n *uint64) string {
		if n == nil {
			return "" // not known
		}
		return strconv.FormatUint(*n, 10)
	}
	for _, x := range r.Results {
		t.row(strconv.Itoa(x.Members), x.Settings, x.Clock, strconv.Itoa(x.Kills), pair(x.First), pair(x.DerivedFirst), pair(x.Everyone), pair(x.DerivedEveryone),
			count(x.FalseDeaths), count(x.LossFalseDeaths),
			fmt.Sprintf("%.1f", x.Packets), fmt.Sprintf("%.0f", x.PacketBytes+x.StreamBytes), fmt.Sprintf("%.0f", x.HostLag.P99))
	}
	return t
}
