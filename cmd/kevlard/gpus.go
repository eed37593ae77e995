package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"github.com/kevlard/kevlard/daemon"
	"github.com/kevlard/kevlard/gpu"
	"github.com/kevlard/kevlard/gpu/health"
)

// visibleVariable is CUDA's: it says which GPUs a process sees.
const visibleVariable = "CUDA_VISIBLE_DEVICES"

// gpus watches this host's GPUs for the daemon, and knows which one a configured device is.
type gpus struct {
	devices    []string // as configured; "": the engine's choice
	backends   string   // [engine] backend_dir
	visible    string   // CUDA_VISIBLE_DEVICES of the daemon
	visibleSet bool
	recording  string // stands for the host; "": none
	log        *slog.Logger

	mu   sync.Mutex
	last health.Reading
	most map[string]memory // of targets, by what makes just them visible
}

func newGPUs(devices []string, backends string, log *slog.Logger) *gpus {
	g := &gpus{devices: devices, backends: backends, recording: os.Getenv(gpu.RecordingVariable), log: log, most: map[string]memory{}}
	g.visible, g.visibleSet = os.LookupEnv(visibleVariable)
	return g
}

// watch hands what is read, and how it was judged, to the daemon until ctx ends. It calls
// changed when there is another budget for a device (see budgets).
func (g *gpus) watch(ctx context.Context, tell func(daemon.DeviceNews), needsMemory bool, changed func()) error {
	var policy health.Policy
	began := time.Now()
	said := ""
	judge := func(r health.Reading) {
		if g.hear(r) {
			changed()
		}
		used, err := g.used(r.Devices)
		if err != nil && err.Error() != said {
			said = err.Error()
			g.log.Warn("which GPUs stages are on is not known", "error", err)
		}
		verdicts, xids := policy.Judge(kevlard.Instant(time.Since(began))+1, r)
		n := news(verdicts, xids, used)
		n.Missing = g.missing(needsMemory)
		tell(n)
	}
	if g.recording == "" {
		return gpu.Watch(ctx, gpu.Options{Log: g.log}, judge)
	}
	g.log.Warn("the health of this host's GPUs is that of a recording, for a rehearsal", "file", g.recording, "variable", gpu.RecordingVariable)
	return gpu.Replay(ctx, g.recording, 0, judge)
}

// used returns the IDs of the devices that stages can be on. Those of a recording all are.
func (g *gpus) used(devices []health.Device) (map[string]bool, error) {
	out := map[string]bool{}
	if g.recording != "" {
		for _, d := range devices {
			out[d.ID()] = true
		}
		return out, nil
	}
	targets, err := g.targets(devices)
	for _, t := range targets {
		if t != nil {
			out[t.Device.ID()] = true
		}
	}
	return out, err
}

// targets is the GPU of each configured device; nil for the CPU and for those that are not
// there.
func (g *gpus) targets(devices []health.Device) ([]*gpu.Target, error) {
	out := make([]*gpu.Target, len(g.devices))
	if !slices.ContainsFunc(g.devices, func(name string) bool { _, ok := cudaIndex(name); return ok }) {
		return out, nil // then nothing is wrong with a bad CUDA_VISIBLE_DEVICES
	}
	there, err := gpu.Targets(devices, g.visible, g.visibleSet)
	for i, name := range g.devices {
		if n, ok := cudaIndex(name); ok && n < len(there) {
			out[i] = &there[n]
		}
	}
	return out, err
}

// environment is what the engine of a configured device must have in its environment, so
// that it sees this device alone: none for the CPU.
func (g *gpus) environment(device string) ([]string, error) {
	n, ok := cudaIndex(device)
	if !ok {
		return nil, nil
	}
	const order = "CUDA_DEVICE_ORDER=PCI_BUS_ID" // as NVML counts
	devices := g.reading().Devices
	if len(devices) == 0 || g.recording != "" {
		// Nothing is known of this host's GPUs, as without NVML: CUDA may know more.
		if !g.visibleSet {
			return []string{order, visibleVariable + "=" + strconv.Itoa(n)}, nil
		}
		names := strings.Split(g.visible, ",")
		if n >= len(names) || strings.TrimSpace(names[n]) == "" {
			return nil, fmt.Errorf("[engine] devices asks for %s, and %s is %q", device, visibleVariable, g.visible)
		}
		return []string{order, visibleVariable + "=" + strings.TrimSpace(names[n])}, nil
	}
	targets, err := gpu.Targets(devices, g.visible, g.visibleSet)
	if err != nil {
		return nil, fmt.Errorf("[engine] devices asks for %s: %w", device, err)
	}
	if n >= len(targets) {
		return nil, fmt.Errorf("[engine] devices asks for %s, and this node may use %d GPUs (%s)", device, len(targets), visibility(g.visible, g.visibleSet))
	}
	return []string{order, visibleVariable + "=" + targets[n].Visible}, nil
}

func visibility(visible string, set bool) string {
	if !set {
		return visibleVariable + " is not set"
	}
	return fmt.Sprintf("%s is %q", visibleVariable, visible)
}

// cudaIndex is N of cuda:N.
func cudaIndex(device string) (int, bool) {
	text, ok := strings.CutPrefix(device, "cuda:")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 0
}

// news turns verdicts into the daemon's words.
func news(verdicts []health.Verdict, xids []health.Report, used map[string]bool) daemon.DeviceNews {
	var out daemon.DeviceNews
	for _, v := range verdicts {
		d := v.Device
		out.Devices = append(out.Devices, daemon.DeviceHealth{
			Index: d.Index, ID: d.ID(), Name: d.Name, PCI: d.PCI, Used: used[d.ID()], State: string(v.State), Cause: v.Cause, Reason: v.Reason, Fix: remedy(v),
			MemoryUsed: d.MemoryUsed, MemoryTotal: d.MemoryTotal, Temperature: d.Temperature, Uncorrected: d.ECCVolatile, MIG: d.MIG,
		})
	}
	for _, x := range xids {
		out.Xids = append(out.Xids, daemon.DeviceXid{PCI: x.PCI, Code: x.Code, Text: x.Text})
	}
	return out
}

// remedy says what to do about a device.
func remedy(v health.Verdict) string {
	switch v.Cause {
	case "":
		return ""
	case "temperature", "throttle":
		return "look at the host's cooling, power and nvidia-smi -q -d TEMPERATURE,PERFORMANCE; it comes back by itself"
	}
	fix := "when its sessions are gone, reset the GPU (nvidia-smi --gpu-reset -i " + strconv.Itoa(v.Device.Index) + ") or reboot the host, and start kevlard again; replace the GPU if it happens again"
	if v.State == health.Drain {
		fix += "; kevlard drain --undo overrules this"
	}
	return fix
}

// notRun lists what of a configuration was never run before this was built. Who runs it is
// told.
func notRun(cfg config.Config) []string {
	var out []string
	if slices.ContainsFunc(cfg.Engine.Devices, func(d string) bool { _, ok := cudaIndex(d); return ok }) {
		out = append(out,
			"stages on CUDA: the library as nvcc builds it, computing, KV read and written on the device, copies on a stream of their own beside computing; they were run with a library that stands in for it, on the CPU",
			"NVML on a real driver: health, Xids, memory for the plan, MIG; it was run with a library that stands in for it, and with recorded kernel lines",
		)
		if cfg.KV.Standby == config.StandbyHot {
			out = append(out, "hot standbys in GPU memory")
		}
	}
	if m := cfg.Mesh; m.Transport == config.TransportRDMA || m.Transport == config.TransportAuto && m.Plain {
		out = append(out, "RDMA on a network card; it was run over Soft-RoCE, in emulated hosts")
	}
	return out
}
