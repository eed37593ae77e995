package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kevlard/kevlard/internal/devmesh"
)

// devReadyTimeout bounds how long a local mesh may take to load its model and
// find itself; after it the mesh is stopped.
const devReadyTimeout = 5 * time.Minute

func devCommand() *cli.Command {
	return &cli.Command{
		Name:  "dev",
		Usage: "run a whole mesh on this machine, for trying things out",
		Description: "Starts hosts and gateways as real daemons and stays in the foreground until\n" +
			"Ctrl-C or SIGTERM, which stops and removes all. Node i listens on 127.0.0.(10+i),\n" +
			"gateways after the hosts, with the same ports on each address: API, gossip, mesh,\n" +
			"bulk = base port, +1, +2, +3. Host i holds stage (i-1) mod S of pipeline (i-1) div S.\n" +
			"With --dir, DIR/cluster.json says what runs, and logs and data stay in DIR after\n" +
			"the end; without it everything is in a temporary directory that is removed.",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "nodes", Value: 8, Usage: "`N` hosts"},
			&cli.IntFlag{Name: "stages", DefaultText: "4, or all nodes if fewer", Usage: "`S` stages per pipeline"},
			&cli.BoolFlag{Name: "auto", Usage: "hosts take the layers that the mesh gives them, and replace one another"},
			&cli.IntFlag{Name: "gateways", Usage: "`G` gateways: daemons without engine that take requests"},
			&cli.StringFlag{Name: "model", DefaultText: "the bundled small story model", Usage: "serve the GGUF `FILE`"},
			&cli.StringFlag{Name: "dir", DefaultText: "a temporary directory", Usage: "keep all files in `DIR`"},
			&cli.IntFlag{Name: "standbys", Value: 1, Usage: "`R` standby copies of each session's KV: 0 or 1"},
			&cli.IntFlag{Name: "base-port", Value: devmesh.DefaultBasePort, Usage: "API port `P`; the next three are gossip, mesh and bulk"},
			&cli.DurationFlag{Name: "restart", DefaultText: "never", Usage: "start a dead daemon again after `D`, such as 2s"},
		},
		Action: runDev,
	}
}

func runDev(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the kevlard binary: %w", err)
	}
	opt := devmesh.Options{
		Exe:      exe,
		Nodes:    c.Int("nodes"),
		Stages:   c.Int("stages"),
		Gateways: c.Int("gateways"),
		Auto:     c.Bool("auto"),
		Model:    c.String("model"),
		Dir:      c.String("dir"),
		BasePort: c.Int("base-port"),
		Restart:  c.Duration("restart"),
		Standbys: c.Int("standbys"),
		LogLevel: c.String("log-level"),
	}
	switch opt.Standbys {
	case 1:
	case 0:
		opt.Standbys = devmesh.NoStandbys
	default:
		return usageError("--standbys %d: want 0 or 1", opt.Standbys)
	}
	for _, flag := range []string{"nodes", "stages"} {
		if c.IsSet(flag) && c.Int(flag) < 1 { // 0 means the default to Options
			return usageError("--%s %d: want at least 1", flag, c.Int(flag))
		}
	}
	began := time.Now()
	mesh, err := startMesh(c, opt)
	if err != nil {
		return err
	}
	err = serveDev(c, mesh, began)
	fmt.Fprintln(c.App.ErrWriter, "stopping")
	return errors.Join(err, mesh.Close())
}

// startMesh starts a mesh; bad options are the user's, so they give exit code 2.
func startMesh(c *cli.Context, opt devmesh.Options) (*devmesh.Mesh, error) {
	if !builtWithEngine {
		return nil, errors.New("start a local mesh: this binary was built without cgo and has no engine: build it with CGO_ENABLED=1")
	}
	mesh, err := devmesh.Start(c.Context, opt)
	if _, bad := errors.AsType[*devmesh.OptionsError](err); bad {
		return nil, usageError("%w", err)
	}
	return mesh, err
}

// readyMesh waits until the mesh serves.
func readyMesh(ctx context.Context, mesh *devmesh.Mesh) error {
	ctx, cancel := context.WithTimeout(ctx, devReadyTimeout)
	defer cancel()
	return mesh.Ready(ctx)
}

// serveDev shows the mesh and waits for the user to end it, which is no error.
func serveDev(c *cli.Context, mesh *devmesh.Mesh, began time.Time) error {
	fmt.Fprintf(c.App.ErrWriter, "starting %d hosts and %d gateways in %s\n", len(mesh.Hosts()), len(mesh.Gateways()), mesh.Dir())
	if err := readyMesh(c.Context, mesh); err != nil {
		return err
	}
	mesh.OnEvent(func(line string) {
		fmt.Fprintf(c.App.ErrWriter, "%s  %s\n", time.Now().Format(time.TimeOnly), line)
	})
	if wantsJSON(c) {
		if err := writeJSON(c.App.Writer, mesh.Cluster(c.Context)); err != nil {
			return err
		}
	} else if err := printDev(c, mesh, time.Since(began)); err != nil {
		return err
	}
	<-c.Context.Done()
	return nil
}

func printDev(c *cli.Context, mesh *devmesh.Mesh, took time.Duration) error {
	w := c.App.Writer
	t := newTable("NODE", "ROLE", "PID", "ENGINE", "LAYERS", "API", "LOG")
	for _, n := range mesh.Cluster(c.Context).Nodes {
		engine, layers := "", ""
		for _, e := range n.Engines {
			engine, layers = strconv.Itoa(e.PID), fmt.Sprintf("[%d,%d)", e.Lo, e.Hi)
		}
		t.row(n.Name, n.Role, strconv.Itoa(n.PID), engine, layers, n.API, filepath.Join(mesh.Dir(), n.Name, "kevlard.log"))
	}
	if err := t.write(w); err != nil {
		return err
	}
	entry := mesh.Entry()
	_, err := fmt.Fprintf(w, `
ready in %.1f s: pipelines of %d stages, any node takes requests

  curl -N %s/v1/completions -H 'Content-Type: application/json' \
    -d '{"model":"%s","prompt":"Once upon a time","max_tokens":100,"temperature":0.7,"stream":true}'
  kevlard --control %s members

kill any process above and watch the text go on; Ctrl-C stops all
`, took.Seconds(), mesh.Stages(), entry.APIURL(), mesh.ModelName(), entry.Control())
	return err
}
