package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/engine"
	"github.com/kevlard/kevlard/internal/kvbench"
	"github.com/kevlard/kevlard/kvstream/codec"
	"github.com/kevlard/kevlard/model"
	"github.com/kevlard/kevlard/model/fairy"
	"github.com/kevlard/kevlard/rdma"
	"github.com/kevlard/kevlard/rdma/rail"
)

func benchKVCommand() *cli.Command {
	return &cli.Command{
		Name:  "kv",
		Usage: "GB/s of bulk transfers against bare connections; what compression gains",
		Description: "Moves pieces over the loopback, by the transport that carries KV and by bare crypto/tls or\n" +
			"TCP connections (the ceiling), taking turns. Both ends run in this process and share its\n" +
			"cores. With an RDMA device pieces go from it to itself too, in turns with plain TCP (TO TCP);\n" +
			"its ceiling is bare TCP. Compression is measured on one core, with KV of the bundled model and with KV in\n" +
			"the shape of Llama 3.1 8B that is made up (random, with outlier channels).",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "sizes", Value: "1024,4096,16384,65536,262144,1048576,4194304,16777216", Usage: "`BYTES` of the pieces, comma separated"},
			&cli.IntFlag{Name: "conns", Value: 4, Usage: "`N` connections, each with a sender and a receiver"},
			&cli.IntFlag{Name: "repeat", Value: 5, Usage: "take the median of `R` rounds"},
			&cli.BoolFlag{Name: "summed", Usage: "tcp-plain with checksums of its own, which KV, whose rows carry theirs, goes without"},
			&cli.DurationFlag{Name: "each", Value: 200 * time.Millisecond, Usage: "`D` of one round of one size, each way"},
		},
		Action: runBenchKV,
	}
}

// kvReport is the JSON of bench kv.
type kvReport struct {
	Results          []kvbench.Result `json:"results"`
	Memcpy           float64          `json:"memcpy_gbytes_s"`
	CompressionRatio float64          `json:"compression_ratio"` // of the first entry of Compression

	RDMA        string          `json:"rdma,omitempty"` // why it was not run
	Conns       int             `json:"connections"`
	Summed      bool            `json:"summed"`
	Compression []kvCompression `json:"compression"`
}

// kvCompression is what the codec does to one kind of KV, on one core.
type kvCompression struct {
	Data   string  `json:"data"`
	Bytes  int     `json:"bytes"`
	Ratio  float64 `json:"ratio"`
	Encode float64 `json:"encode_gbytes_s"`
	Decode float64 `json:"decode_gbytes_s"`
	Pays   float64 `json:"pays_below_gbytes_s"` // on links slower than this
}

func runBenchKV(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	o, err := kvOptions(c)
	if err != nil {
		return err
	}
	r := kvReport{Conns: o.Conns, Summed: o.Summed}
	if r.Compression, err = compressions(o.Each); err != nil {
		return err
	}
	r.CompressionRatio = r.Compression[0].Ratio
	r.Memcpy = kvbench.Memcpy(o.Each)
	if r.Results, err = kvbench.Run(c.Context, o); err != nil {
		return err
	}
	rows, err := benchRDMA(c.Context, o)
	if r.Results = append(r.Results, rows...); err != nil {
		r.RDMA = fmt.Sprintf("not run: %v", err)
	}
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, r)
	}
	return printKV(c, r)
}

// benchRDMA measures RDMA on the devices that the daemon would use. Its error says why it
// was not run.
func benchRDMA(ctx context.Context, o kvbench.Options) (rows []kvbench.Result, err error) {
	var want rail.Want
	cards, err := rdma.Open(want)
	if errors.Is(err, rdma.ErrNoDevice) {
		return nil, fmt.Errorf("no device (%w)", err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cards.Close()) }()
	return kvbench.RunRDMA(ctx, o, cards.Devices, want)
}

// kvOptions checks the flags.
func kvOptions(c *cli.Context) (kvbench.Options, error) {
	const most = 16 << 20
	o := kvbench.Options{
		Conns: c.Int("conns"), Rounds: c.Int("repeat"), Each: c.Duration("each"), Summed: c.Bool("summed"),
		Say: func(format string, args ...any) { fmt.Fprintf(c.App.ErrWriter, format+"\n", args...) },
	}
	for text := range strings.SplitSeq(c.String("sizes"), ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 1 || n > most {
			return o, usageError("--sizes %s: want numbers of bytes from 1 to %d, comma separated", text, most)
		}
		o.Sizes = append(o.Sizes, n)
	}
	switch {
	case o.Conns < 1 || o.Conns > 16:
		return o, usageError("--conns %d: want 1 to 16", o.Conns)
	case o.Rounds < 1 || o.Rounds > 1000:
		return o, usageError("--repeat %d: want 1 to 1000", o.Rounds)
	case o.Each < time.Millisecond || o.Each > time.Minute:
		return o, usageError("--each %v: want 1ms to 1m", o.Each)
	}
	return o, nil
}

// compressions measures the codec on real KV, if this build has an engine, and on made-up
// KV.
func compressions(each time.Duration) ([]kvCompression, error) {
	var out []kvCompression
	add := func(data string, b []byte) error {
		m, err := codec.Measure(b, codec.F32, each)
		if err != nil {
			return fmt.Errorf("compress %s: %w", data, err)
		}
		out = append(out, kvCompression{data, len(b), m.Ratio, m.Encode, m.Decode, codec.PaysBelow(m.Ratio, min(m.Encode, m.Decode))})
		return nil
	}
	cells, err := fairyKV()
	if err == nil {
		err = add("bundled model, float32", cells)
	}
	if err != nil && !errors.Is(err, engine.ErrUnsupported) {
		return nil, err
	}
	return out, add("made up, shape of Llama 3.1 8B, float32", codec.Synthetic(512, 1))
}

// fairyKV computes the KV of some sentences with the bundled model, in this process.
func fairyKV() ([]byte, error) {
	dir, err := os.MkdirTemp("", "kevlard-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a place for the bundled model: %w", err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, fairy.Name)
	if err := os.WriteFile(path, fairy.GGUF(), 0o600); err != nil {
		return nil, fmt.Errorf("write the bundled model: %w", err)
	}
	m, err := model.Load(path, "")
	if err != nil {
		return nil, err
	}
	t, err := openTokenizer(m)
	if err != nil {
		return nil, err
	}
	tokens, err := t.Encode(strings.Join(benchPrompts(), ". "))
	if err != nil {
		return nil, err
	}
	s, err := engine.Open(engine.NewSpec(m, kevlard.Layers{Hi: m.Layers}, 1, len(tokens), len(tokens)), nil)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if _, err := s.Forward(engine.Batch{Parts: []engine.Part{{N: len(tokens), Tokens: tokens}}}); err != nil {
		return nil, err
	}
	cells := make([]byte, len(tokens)*s.Info().CellBytes)
	return cells, s.Read(0, len(tokens), cells)
}

func printKV(c *cli.Context, r kvReport) error {
	t := newTable("TRANSPORT", "PIECE", "GB/S", "CEILING", "RATIO", "CPU S/GB", "TO TCP")
	for _, v := range r.Results {
		toTCP := ""
		if v.ToTCP > 0 {
			toTCP = fmt.Sprintf("%.2f", v.ToTCP)
		}
		t.row(v.Transport, byteSize(int64(v.Piece)), fmt.Sprintf("%.2f", v.Speed), fmt.Sprintf("%.2f", v.Ceiling), fmt.Sprintf("%.2f", v.Ratio), fmt.Sprintf("%.2f", v.CPU), toTCP)
	}
	if err := t.write(c.App.Writer); err != nil {
		return err
	}
	if r.RDMA != "" {
		fmt.Fprintf(c.App.Writer, "rdma: %s\n", r.RDMA)
	}
	fmt.Fprintf(c.App.Writer, "\n%d connections, both ends in this process; memcpy of one core %.1f GB/s\n\n", r.Conns, r.Memcpy)
	z := newTable("COMPRESSION OF KV", "RATIO", "ENCODE GB/S", "DECODE GB/S", "PAYS ON LINKS BELOW")
	for _, v := range r.Compression {
		pays := "never"
		if v.Pays > 0 {
			pays = fmt.Sprintf("%.1f Gbit/s", 8*v.Pays)
		}
		z.row(v.Data, fmt.Sprintf("%.2f", v.Ratio), fmt.Sprintf("%.2f", v.Encode), fmt.Sprintf("%.2f", v.Decode), pays)
	}
	return z.write(c.App.Writer)
}
