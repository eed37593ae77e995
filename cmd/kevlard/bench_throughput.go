package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

func benchThroughputCommand() *cli.Command {
	return &cli.Command{
		Name:  "throughput",
		Usage: "tokens per second of a pipeline against one process",
		Description: "Runs the same greedy streams over a pipeline of daemons and over one host that holds\n" +
			"all layers, both through a gateway: first one stream at a time, then --concurrency at\n" +
			"once. Every engine has one thread. The time that one more activation hop adds to a\n" +
			"token is the difference of the single streams, divided by the hops.",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "stages", Value: 4, Usage: "`S` stages of the pipeline"},
			&cli.IntFlag{Name: "concurrency", Value: 8, Usage: "`C` sessions at once"},
			&cli.IntFlag{Name: "tokens", Value: 128, Usage: "`N` tokens of each stream"},
			&cli.IntFlag{Name: "repeat", Value: 3, Usage: "take the median of `R` rounds"},
			&cli.StringFlag{Name: "model", Value: "110m", Usage: "`MODEL`: a preset of model synth, fairy, or a GGUF file"},
		},
		Action: runBenchThroughput,
	}
}

// throughputReport is the JSON of bench throughput. The top level has the figures
// with all sessions at once.
type throughputReport struct {
	Stages      int     `json:"stages"`
	Concurrency int     `json:"concurrency"`
	Pipeline    float64 `json:"pipeline_tok_s"`
	Single      float64 `json:"single_process_tok_s"`
	Ratio       float64 `json:"ratio"`

	Model      string         `json:"model"`
	Tokens     int            `json:"tokens_per_session"`
	OneSession rates          `json:"one_session"`
	HopMS      float64        `json:"hop_added_ms"`
	TokenExact bool           `json:"token_exact"` // both gave the same text
	Engines    []engineMemory `json:"engines"`     // of the pipeline, after the load
}

type rates struct {
	Pipeline float64 `json:"pipeline_tok_s"`
	Single   float64 `json:"single_process_tok_s"`
	Ratio    float64 `json:"ratio"`
}

// engineMemory compares what an engine keeps resident with the weights it needs.
type engineMemory struct {
	Node        string `json:"node"`
	Lo          int    `json:"lo"`
	Hi          int    `json:"hi"`
	WeightBytes int64  `json:"weight_bytes"`
	RSSBytes    int64  `json:"rss_bytes"`
}

// throughput is what one mesh achieved.
type throughput struct {
	one, many float64 // tokens per second
	texts     []string
	engines   []engineMemory
}

func runBenchThroughput(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	for _, flag := range []string{"stages", "concurrency", "tokens", "repeat"} {
		if c.Int(flag) < 1 {
			return usageError("--%s %d: want at least 1", flag, c.Int(flag))
		}
	}
	path, err := benchModel(c, c.String("model"))
	if err != nil {
		return err
	}
	stages := c.Int("stages")
	pipeline, err := measureThroughput(c, path, stages)
	if err != nil {
		return err
	}
	single, err := measureThroughput(c, path, 1)
	if err != nil {
		return err
	}
	r := throughputReport{
		Stages: stages, Concurrency: c.Int("concurrency"), Model: c.String("model"), Tokens: c.Int("tokens"),
		Pipeline: pipeline.many, Single: single.many, Ratio: pipeline.many / single.many,
		OneSession: rates{pipeline.one, single.one, pipeline.one / single.one},
		TokenExact: slices.Equal(pipeline.texts, single.texts), Engines: pipeline.engines,
	}
	if stages > 1 {
		r.HopMS = 1000 * (1/pipeline.one - 1/single.one) / float64(stages-1)
	}
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, r)
	}
	return printThroughput(c, r)
}

func printThroughput(c *cli.Context, r throughputReport) error {
	t := newTable("SESSIONS", "PIPELINE TOK/S", "ONE PROCESS TOK/S", "RATIO")
	row := func(n int, v rates) {
		t.row(strconv.Itoa(n), fmt.Sprintf("%.1f", v.Pipeline), fmt.Sprintf("%.1f", v.Single), fmt.Sprintf("%.2f", v.Ratio))
	}
	row(1, r.OneSession)
	row(r.Concurrency, rates{r.Pipeline, r.Single, r.Ratio})
	if err := t.write(c.App.Writer); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "\n%s over %d stages; one more hop adds %.2f ms to a token; same text: %t\n\n", r.Model, r.Stages, r.HopMS, r.TokenExact)
	m := newTable("NODE", "LAYERS", "WEIGHTS", "RESIDENT", "OVER")
	for _, e := range r.Engines {
		m.row(e.Node, fmt.Sprintf("[%d,%d)", e.Lo, e.Hi), byteSize(e.WeightBytes), byteSize(e.RSSBytes), byteSize(e.RSSBytes-e.WeightBytes))
	}
	return m.write(c.App.Writer)
}

// measureThroughput runs the streams over a mesh of one pipeline.
func measureThroughput(c *cli.Context, path string, stages int) (throughput, error) {
	fmt.Fprintf(c.App.ErrWriter, "starting %d hosts and a gateway\n", stages)
	mesh, err := benchMesh(c, devmesh.Options{Nodes: stages, Stages: stages, Gateways: 1, Model: path})
	if err != nil {
		return throughput{}, err
	}
	t, err := throughputOf(c, mesh)
	return t, errors.Join(err, mesh.Close())
}

func throughputOf(c *cli.Context, mesh *devmesh.Mesh) (throughput, error) {
	client := load.NewClient(mesh.Entry().APIURL())
	defer client.CloseIdle()
	prompts := benchPrompts()
	requests := make([]load.Request, c.Int("concurrency"))
	for i := range requests {
		requests[i] = load.Request{
			Model: mesh.ModelName(), Prompt: prompts[i%len(prompts)], MaxTokens: c.Int("tokens"),
			Seed: uint64(i), IgnoreEOS: true,
		}
	}
	var t throughput
	if _, _, err := rate(c.Context, client, requests[:1]); err != nil { // the first stream warms caches and connections
		return t, err
	}
	var one, many []float64
	for round := range c.Int("repeat") {
		v, _, err := rate(c.Context, client, requests[:1])
		if err != nil {
			return t, err
		}
		w, texts, err := rate(c.Context, client, requests)
		if err != nil {
			return t, err
		}
		one, many, t.texts = append(one, v), append(many, w), texts
		fmt.Fprintf(c.App.ErrWriter, "round %d: %.1f tok/s with 1 session, %.1f with %d\n", round+1, v, w, len(requests))
	}
	slices.Sort(one)
	slices.Sort(many)
	t.one, t.many = one[len(one)/2], many[len(many)/2]
	var err error
	t.engines, err = engineMemories(c.Context, mesh)
	return t, err
}

// rate runs the requests at once and returns tokens per second from the first
// request to the last token, and the texts.
func rate(ctx context.Context, client *load.Client, requests []load.Request) (float64, []string, error) {
	began := time.Now()
	results := streamAll(ctx, client, requests)
	took := time.Since(began)
	tokens := 0
	texts := make([]string, len(results))
	for i, r := range results {
		if r.Err != nil {
			return 0, nil, fmt.Errorf("stream %d: %w", i, r.Err)
		}
		tokens += r.Tokens
		texts[i] = r.Text()
	}
	return float64(tokens) / took.Seconds(), texts, nil
}

func engineMemories(ctx context.Context, mesh *devmesh.Mesh) ([]engineMemory, error) {
	var out []engineMemory
	for _, n := range mesh.Cluster(ctx).Nodes {
		for _, e := range n.Engines {
			u, err := devmesh.UsageOf(e.PID)
			if err != nil {
				return nil, err
			}
			out = append(out, engineMemory{n.Name, e.Lo, e.Hi, e.WeightBytes, u.RSS})
		}
	}
	return out, nil
}
