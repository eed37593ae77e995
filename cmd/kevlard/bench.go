package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
	"github.com/kevlard/kevlard/model"
)

func (sh shell) benchCommand() *cli.Command {
	return &cli.Command{
		Name:        "bench",
		Usage:       "measure a local mesh of real daemons, and its parts",
		Subcommands: []*cli.Command{benchThroughputCommand(), sh.benchFailoverCommand(), benchOverheadCommand(), benchKVCommand(), benchRouteCommand(), benchRingCommand(), benchCellsCommand()},
		Action: func(c *cli.Context) error {
			return usageError("bench needs what to measure: throughput, failover, overhead, kv, route or ring")
		},
	}
}

// benchMesh starts a mesh for a measurement on free ports and waits until it
// serves. The caller closes it.
func benchMesh(c *cli.Context, opt devmesh.Options) (*devmesh.Mesh, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the kevlard binary: %w", err)
	}
	opt.Exe, opt.LogLevel = exe, c.String("log-level")
	if opt.BasePort, err = devmesh.FreeBase(devmesh.DefaultBasePort, opt.Nodes+opt.Gateways); err != nil {
		return nil, err
	}
	mesh, err := startMesh(c, opt)
	if err != nil {
		return nil, err
	}
	if err := readyMesh(c.Context, mesh); err != nil {
		return nil, closing(mesh, err)
	}
	return mesh, nil
}

// closing closes the mesh after an error, which goes first.
func closing(mesh *devmesh.Mesh, err error) error {
	if closeErr := mesh.Close(); closeErr != nil {
		return fmt.Errorf("%w (and: %w)", err, closeErr)
	}
	return err
}

// benchModel returns the model file to measure with: a path as it is, "fairy" for
// the bundled one (the empty path), or the random-weight model of a preset,
// written to the user's cache directory at first use.
func benchModel(c *cli.Context, name string) (string, error) {
	if name == "fairy" {
		return "", nil
	}
	spec, err := model.Preset(name)
	if err != nil {
		if _, statErr := os.Stat(name); statErr == nil {
			return name, nil
		}
		return "", usageError("--model %s: want fairy, a preset %q, or the path of a GGUF file", name, model.PresetNames())
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache directory for the model: %w", err)
	}
	path := filepath.Join(cache, "kevlard", "bench-"+name+".gguf")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("make the model cache: %w", err)
	}
	fmt.Fprintf(c.App.ErrWriter, "writing %s, once\n", path)
	// Under another name until it is complete: an interrupted run leaves no half model.
	half := path + ".part"
	if err := model.Synth(half, spec, nil); err != nil {
		return "", err
	}
	if err := os.Rename(half, path); err != nil {
		return "", fmt.Errorf("put the model in place: %w", err)
	}
	return path, nil
}

// benchPrompts are the beginnings that the streams of a bench continue.
func benchPrompts() []string {
	return []string{
		"Once upon a time there was a little girl who",
		"The old king had three sons, and the youngest",
		"In a deep dark forest there lived",
		"The fox said to the cat",
		"There was once a poor miller who",
		"The princess looked out of the window and",
		"A soldier came marching along the road",
		"Far away in the land where the swallows fly",
	}
}

// streamAll runs the requests at once and waits for all of them.
func streamAll(ctx context.Context, client *load.Client, requests []load.Request) []load.Result {
	results := make([]load.Result, len(requests))
	done := make(chan int)
	for i, r := range requests {
		go func() {
			results[i] = client.Stream(ctx, r, nil)
			done <- i
		}()
	}
	for range requests {
		<-done
	}
	return results
}
