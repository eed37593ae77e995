package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"github.com/kevlard/kevlard/daemon"
	"github.com/kevlard/kevlard/internal/lifecycle"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/membership"
	"github.com/kevlard/kevlard/model"
	"github.com/kevlard/kevlard/topology"
	"github.com/kevlard/kevlard/weights"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/urfave/cli/v2"
)

const (
	// drainTimeout is how long sessions may take to end after SIGTERM.
	drainTimeout = 20 * time.Second
	// flushTimeout is what the API may take to send the ends of streams.
	flushTimeout = time.Second
	// daemonGrace, apiGrace and controlGrace bound the stop of the agent's parts; with
	// drainTimeout they bound how long it takes to exit.
	daemonGrace  = 28 * time.Second
	apiGrace     = 5 * time.Second
	controlGrace = 5 * time.Second

	// batchRows is the most rows of one batch, as package stage forms them.
	batchRows = 512
	// defaultKVBytes is the KV memory of a stage, unless configured. The pages are
	// touched only as sessions use them.
	defaultKVBytes = 256 << 20
	// maxCells is the most KV positions of a stage, unless configured.
	maxCells = 1 << 18
)

func (sh shell) agentCommand() *cli.Command {
	return &cli.Command{
		Name: "agent", Usage: "run the daemon in the foreground",
		Description: "Precedence of each value: flag, environment (KEVLARD_...), file, default.\n\n" +
			"SIGTERM or SIGINT: take no new sessions, let those there are move or end, leave the ring, exit 0;\n" +
			"a second one ends it at once. SIGHUP: read the configuration, the API keys and the API's\n" +
			"certificate again; these and the log level take effect, the log says what needs a restart.\n\n" +
			"Loopback addresses are advertised only with --dev ([ring] dev = true), for a mesh on one machine.",
		Flags: configFlags(),
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			// A panic, or SIGABRT from a watchdog, would end it with exit code 2 once the
			// stacks are printed. So it is a signal that ends it, after which a service
			// manager starts it again; 2 is for a bad configuration.
			debug.SetTraceback("crash")
			a, err := sh.newAgent(c)
			if err != nil {
				return err
			}
			return a.run(c.Context)
		},
	}
}

// agent is a daemon with everything around it.
type agent struct {
	cfg     config.Config
	dir     *os.File // the data directory, which is ours while it is open
	reload  func() (config.Config, error)
	level   *slog.LevelVar
	log     *slog.Logger
	models  *catalogue
	gpus    *gpus
	daemon  *daemon.Daemon
	gen     generator
	api     *api.Server
	control *api.Control
}

// newAgent checks everything and binds every port, so that mistakes show before
// anything runs.
func (sh shell) newAgent(c *cli.Context) (_ *agent, err error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("find the host's name: %w: set [node] name", err)
	}
	defaults := config.Defaults()
	defaults.Node.Name = host
	defaults.Control.Socket = sh.defaultSocket()
	load := func() (config.Config, error) {
		loaded, err := sh.loadConfig(c, defaults)
		return loaded.Config, err
	}
	cfg, err := load()
	if err != nil {
		return nil, err
	}
	secret, err := readSecret(cfg.Ring.SecretFile)
	if err != nil {
		return nil, err
	}
	dir, err := openDataDir(cfg.Node.DataDir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			dir.Close()
		}
	}()
	a := &agent{cfg: cfg, reload: load, level: new(slog.LevelVar), dir: dir}
	a.log = newLogger(c.App.ErrWriter, cfg.Log, a.level)
	loader := model.Loader{CacheDir: filepath.Join(cfg.Node.DataDir, "manifests"), Progress: progressLog(a.log)}
	library := weights.NewLibrary(fetchedDir(cfg), a.log)
	a.models = newCatalogue(cfg.Models.Dirs, loader, library, a.log)
	a.models.recall(c.Context)
	assigned, err := a.assign(c.Context)
	if err != nil {
		return nil, err
	}
	if !planned(cfg) { // else the node joins first, and is of use while it reads
		a.models.scan(c.Context)
	}
	if err := a.bind(c.Context, secret, assigned); err != nil {
		return nil, err
	}
	return a, nil
}

// fetchedDir is where weights from other nodes are kept.
func fetchedDir(cfg config.Config) string { return filepath.Join(cfg.Node.DataDir, "models") }

// progressLog logs the hashing of big files, which takes a while the first time.
func progressLog(log *slog.Logger) func(path string, done, total int64) {
	const step = 1 << 30
	return func(path string, done, total int64) {
		if done == total && total >= step {
			log.Info("model file read", "path", path, "bytes", total)
		}
	}
}

// assign finds the model files of the configured stages.
func (a *agent) assign(ctx context.Context) ([]daemon.AssignedStage, error) {
	if planned(a.cfg) && cpus(a.cfg) > 0 && hostMemory() == 0 && a.cfg.Engine.MemoryBytes == 0 {
		a.log.Warn("the CPU of this host takes no stages: nothing says how much memory it has: set [engine] memory_bytes")
	}
	names := deviceNames(a.cfg)
	var out []daemon.AssignedStage
	for i, as := range a.cfg.Models.Assign {
		m, err := resolveModel(ctx, a.models.loader, a.cfg.Models.Dirs, as.Model, a.models.holding(as.Layers)...)
		if err == nil {
			err = a.adopt(m)
		}
		if err != nil {
			return nil, fmt.Errorf("models.assign entry %d: %w", i+1, err)
		}
		if as.Layers.Hi > m.Layers {
			return nil, usageError("models.assign entry %d: layers %v: %s has only %d", i+1, as.Layers, m.Name, m.Layers)
		}
		cells := a.cfg.Engine.Cells
		if cells == 0 {
			bytes := cmp.Or(a.cfg.Engine.MemoryBytes, defaultKVBytes)
			cells = max(m.Context, min(bytes/(as.Layers.Len()*m.KVRowBytes(rowValueBytes)), maxCells))
		}
		out = append(out, daemon.AssignedStage{
			Model: topology.Model{ID: m.ID, Name: m.Name, Layers: m.Layers, Context: m.Context, Vocab: m.Vocab},
			Path:  m.Path, Layers: as.Layers, Width: m.Dim * rowValueBytes, CellsWanted: cells,
			Device: i % len(names),
		})
	}
	return out, nil
}

// adopt makes the model of a stage known. What was fetched, the library knows better.
func (a *agent) adopt(m *model.Manifest) error {
	if slices.Contains(a.models.fetched, m) {
		return a.models.know(m)
	}
	return a.models.add(m)
}

// threads returns the compute threads of one engine.
func (a *agent) threads() int {
	if n := a.cfg.Engine.Threads; n > 0 {
		return n
	}
	if planned(a.cfg) { // how many stages it will hold is not known; two is usual in a small ring
		return defaultThreads(2)
	}
	return defaultThreads(len(a.cfg.Models.Assign))
}

// defaultThreads shares half of the cores among the engines: ggml's threads wait for
// one another by spinning, so one thread more than there are free cores makes it
// many times slower, while half of the cores less costs at most half the speed.
func defaultThreads(engines int) int {
	return max(1, runtime.NumCPU()/2/max(1, engines))
}

// bind makes the daemon, the API and the control socket. On error it releases what
// was bound.
func (a *agent) bind(ctx context.Context, secret []byte, assigned []daemon.AssignedStage) (err error) {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program, to start engines: %w", err)
	}
	cfg := a.cfg
	passed, err := passedListener()
	if err != nil {
		return err
	}
	if passed != nil {
		defer func() {
			if err != nil {
				passed.Close()
			}
		}()
		a.log.Info("the service manager has opened the API's port", "listen", passed.Addr().String(), "instead of", cfg.API.Listen)
		cfg.API.Listen = passed.Addr().String()
	}
	dcfg := daemon.Config{
		Name: kevlard.NodeID(cfg.Node.Name), Role: cfg.Node.Role, Ring: cfg.Ring.Name, Secret: secret, DataDir: cfg.Node.DataDir,
		GossipBind: cfg.Ring.Bind, GossipAdvertise: cfg.Ring.Advertise, Join: cfg.Ring.Join, Profile: cfg.Ring.Profile,
		MeshListen: cfg.Mesh.Bind, MeshAdvertise: meshAdvertise(cfg),
		APIAddr: cfg.API.Listen, APITLS: cfg.API.TLSCert != "", Control: cfg.Control.Socket,
		Assigned: assigned, Threads: a.threads(), Zone: cfg.Node.Zone, Labels: cfg.Node.Labels,
		Version: buildVersion().Version, Dev: cfg.Ring.Dev, Auto: planned(cfg), Capacity: capacity(cfg, budgets(cfg, nil)),
	}
	dcfg.BulkListen, dcfg.BulkPlain, dcfg.BulkBandwidth = bulkListen(cfg), cfg.Mesh.Plain, int64(cfg.KV.Bandwidth)
	dcfg.BulkTransport = cfg.Mesh.Transport
	dcfg.WeightsBandwidth = int64(cfg.Models.FetchBandwidth)
	dcfg.Standbys = cfg.KV.Standbys
	if dcfg.Timing.Resume = cfg.API.ResumeWindow; dcfg.Timing.Resume == 0 {
		dcfg.Timing.Resume = -1
	}
	dcfg.KV = index.Config{BlockTokens: cfg.KV.BlockTokens, Bytes: int64(cfg.KV.RAMBytes), Hot: cfg.KV.Standby == config.StandbyHot}
	dcfg.Timing.Stage.Replicate = time.Duration(cfg.KV.ReplicateMS) * time.Millisecond
	dcfg.Limits.Stage.ReplicateTokens = cfg.KV.ReplicateTokens
	if dcfg.Control, err = filepath.Abs(cfg.Control.Socket); err != nil {
		return fmt.Errorf("control socket %s: %w", cfg.Control.Socket, err)
	}
	if dcfg.Control == systemSocket {
		// The service manager makes it for a service; here root may have started us by
		// hand. Whoever may not make it is told when the socket cannot be made either.
		_ = os.Mkdir(filepath.Dir(systemSocket), 0o755)
	}
	// The control socket comes first: it keeps a second daemon of this machine from
	// disturbing the first one's files.
	socket, err := api.ListenControl(cfg.Control.Socket, cfg.Control.Group)
	if err != nil {
		return err
	}
	// The API comes before the daemon, which answers gossip from then on: who stops for
	// a mistake in its keys should not have been seen in the ring.
	shed := func(reason string) { a.daemon.Shed(reason) }
	if a.api, err = api.Open(api.Config{
		Listen: cfg.API.Listen, Listener: passed, KeysFile: cfg.API.KeysFile, SharePrefixes: cfg.API.SharePrefixes, TLSCert: cfg.API.TLSCert, TLSKey: cfg.API.TLSKey,
		MaxInFlight: cfg.API.MaxQueue, Drain: flushTimeout, Shed: shed, Log: a.log,
	}); err != nil {
		return errors.Join(misconfigured(err), socket.Close())
	}
	a.gpus = newGPUs(deviceNames(cfg), cfg.Engine.BackendDir, a.log)
	dcfg.NotRun = notRun(cfg)
	var watch func(context.Context, func(daemon.DeviceNews)) error
	if cfg.Node.Role == config.RoleHost {
		watch = func(ctx context.Context, tell func(daemon.DeviceNews)) error {
			return a.gpus.watch(ctx, tell, planned(cfg) && cfg.Engine.MemoryBytes == 0, a.models.stir)
		}
	}
	launch := launcher{gpus: a.gpus, exe: exe, find: a.models.find, rows: batchRows, log: a.log, numerics: newNumerics()}
	if a.daemon, err = daemon.New(dcfg, daemon.Deps{Launcher: launch, Library: a.models.library, Fetched: a.fetched, Devices: watch, RDMA: a.rdma(), SecretFile: func() ([]byte, error) { return readSecret(cfg.Ring.SecretFile) }, Log: a.log}); err != nil {
		return errors.Join(misconfigured(err), socket.Close(), a.api.Close())
	}
	a.gen = generator{a.daemon, a.models}
	metrics := promhttp.HandlerFor(a.daemon.Gatherer(), promhttp.HandlerOpts{})
	a.control = api.NewControl(socket, administered{a.daemon, a.models}, a.gen, metrics, buildVersion(), a.log)
	a.api.Attach(a.gen, metrics)
	return nil
}

// misconfigured gives errors that only another configuration mends their exit code:
// a supervisor need not start the agent again.
func misconfigured(err error) error {
	advertise, refused := errors.AsType[*membership.AdvertiseError](err)
	_, refusedAPI := errors.AsType[*api.ConfigError](err)
	if refused && !advertise.Passing || refusedAPI {
		return usageError("%w", err)
	}
	return err
}

// meshAdvertise returns the address of the mesh for others: the fabric's, or that
// of the ring, or what the mesh is bound to.
func meshAdvertise(cfg config.Config) string {
	if cfg.Mesh.Fabric != "" {
		return cfg.Mesh.Fabric
	}
	if host, _, err := net.SplitHostPort(cfg.Ring.Advertise); err == nil {
		return host // its port is gossip's
	}
	return cfg.Ring.Advertise
}

// bulkListen returns where bulk transfers are taken: at the mesh's address.
func bulkListen(cfg config.Config) string {
	host, _, err := net.SplitHostPort(cfg.Mesh.Bind)
	if err != nil {
		return "" // the mesh will say what is wrong with it
	}
	return net.JoinHostPort(host, strconv.Itoa(cfg.Mesh.BulkPort))
}

// run runs all parts until a signal, kevlard leave or a failure.
func (a *agent) run(ctx context.Context) error {
	defer a.dir.Close()
	err := a.runParts(ctx)
	if taken, ok := errors.AsType[*membership.NameTakenError](err); ok {
		return taken // it says all; which part found out is of no use to anybody
	}
	if err == nil {
		a.log.Info("stopped") // what went before says how
	}
	return err
}

func (a *agent) runParts(ctx context.Context) error {
	// The parts outlive the signal: sessions end and the ring is left first.
	return lifecycle.Run(context.WithoutCancel(ctx),
		lifecycle.Part{Name: "daemon", Run: a.daemon.Run, Grace: daemonGrace},
		lifecycle.Part{Name: "models", Run: a.followModels},
		lifecycle.Part{Name: "control", Run: a.control.Run, Grace: controlGrace},
		lifecycle.Part{Name: "api", Run: a.api.Run, Grace: apiGrace},
		lifecycle.Part{Name: "signals", Run: func(stop context.Context) error { return a.signals(stop, ctx.Done()) }},
	)
}

// signals obeys SIGHUP, and leaves the ring when told to end.
func (a *agent) signals(ctx context.Context, end <-chan struct{}) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-hangup:
			a.rereadConfig()
		case <-end:
			a.log.Info("stopping: sessions may end, then the ring is left", "at most", drainTimeout)
			left, err := a.daemon.Leave(ctx, drainTimeout)
			if left.Lost {
				a.log.Warn("sessions were cut off", "sessions", left.Cut)
			}
			if err != nil {
				// The others will find out; stopping goes on.
				a.log.Warn("the ring was not told", "error", err)
			} else if !left.Lost {
				a.log.Info("the ring is left; no session was cut off")
			}
			return nil
		}
	}
}
