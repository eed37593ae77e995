package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon"
	"github.com/kevlard/kevlard/model"
)

// maxBenchCells is the most cells of bench cells: their bytes are held three times.
const maxBenchCells = 1 << 16

// benchCellsCommand is hidden: scripts/device-check.sh runs it where there is no Go.
func benchCellsCommand() *cli.Command {
	return &cli.Command{
		Name: "cells", Hidden: true,
		Usage: "GB/s of KV cells out of an engine's device and back",
		Description: "Starts an engine with all layers of a model on a device, and copies cells out of it and back\n" +
			"as a daemon does, by the memory that both share. What is read back must be what was written.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "model", Usage: "the GGUF `FILE`"},
			&cli.StringFlag{Name: "device", Value: "cpu", Usage: "`DEVICE` as in [engine] devices"},
			&cli.StringFlag{Name: "backend-dir", Usage: "`DIR` as [engine] backend_dir"},
			&cli.IntFlag{Name: "cells", Value: 2048, Usage: "`N` cells of each copy"},
			&cli.DurationFlag{Name: "each", Value: time.Second, Usage: "`D` of the copies of one direction, at least one copy"},
		},
		Action: runBenchCells,
	}
}

// cellsReport is the JSON of bench cells.
type cellsReport struct {
	Device    string  `json:"device"`
	CellBytes int     `json:"cell_bytes"`
	CopyBytes int     `json:"copy_bytes"`
	Export    float64 `json:"export_gbytes_s"` // device to daemon
	Import    float64 `json:"import_gbytes_s"` // daemon to device
}

func runBenchCells(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	if c.String("model") == "" {
		return usageError("bench cells needs --model: a GGUF file")
	}
	n := c.Int("cells")
	if n < 1 || n > maxBenchCells {
		return usageError("flag --cells is %d: want 1 to %d", n, maxBenchCells)
	}
	e, err := benchEngine(c, n)
	if err != nil {
		return err
	}
	r, err := copyCells(c.Context, e, n, c.Duration("each"))
	if err := errors.Join(err, e.Close()); err != nil {
		return err
	}
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, r)
	}
	_, err = fmt.Fprintf(c.App.Writer, "%s: %d cells of %d bytes: out %.2f GB/s, back %.2f GB/s, bytes equal\n", r.Device, n, r.CellBytes, r.Export, r.Import)
	return err
}

// benchEngine starts the engine that the flags name, the way a daemon does.
func benchEngine(c *cli.Context, cells int) (daemon.Engine, error) {
	path := c.String("model")
	m, err := model.Load(path, "")
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the kevlard binary: %w", err)
	}
	log := slog.New(slog.NewTextHandler(c.App.ErrWriter, &slog.HandlerOptions{Level: slog.LevelWarn}))
	devices := []string{c.String("device")}
	l := launcher{
		exe: exe, rows: batchRows, log: log, gpus: newGPUs(devices, c.String("backend-dir"), log), numerics: newNumerics(),
		find: func(kevlard.Digest, kevlard.Layers) *model.Manifest { return m },
	}
	stage := kevlard.StageKey{Model: m.ID, Layers: kevlard.Layers{Hi: m.Layers}}
	return l.Launch(c.Context, daemon.LaunchSpec{Stage: stage, Path: path, Threads: 1, Cells: cells})
}

// copyCells writes n cells of noise, reads them back, compares, and measures both.
func copyCells(ctx context.Context, e daemon.Engine, n int, each time.Duration) (cellsReport, error) {
	info := e.Info()
	r := cellsReport{Device: info.Device, CellBytes: info.CellBytes, CopyBytes: n * info.CellBytes}
	want, got := make([]byte, r.CopyBytes), make([]byte, r.CopyBytes)
	rand.NewChaCha8([32]byte{1}).Read(want) // never fails
	if err := e.WriteCells(ctx, 0, n, want); err != nil {
		return r, fmt.Errorf("write %d cells: %w", n, err)
	}
	if err := e.ReadCells(ctx, 0, n, got); err != nil {
		return r, fmt.Errorf("read %d cells: %w", n, err)
	}
	if !bytes.Equal(want, got) {
		return r, fmt.Errorf("%s: the KV that was read is not the KV that was written", r.Device)
	}
	var err error
	if r.Export, err = copyRate(r.CopyBytes, each, func() error { return e.ReadCells(ctx, 0, n, got) }); err != nil {
		return r, err
	}
	r.Import, err = copyRate(r.CopyBytes, each, func() error { return e.WriteCells(ctx, 0, n, want) })
	return r, err
}

// copyRate repeats a copy of size bytes for a while and returns the mean GB/s.
func copyRate(size int, each time.Duration, f func() error) (float64, error) {
	began, done := time.Now(), 0
	for done == 0 || time.Since(began) < each {
		if err := f(); err != nil {
			return 0, fmt.Errorf("copy cells: %w", err)
		}
		done++
	}
	return float64(done*size) / 1e9 / time.Since(began).Seconds(), nil
}
