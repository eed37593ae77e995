package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/engine"
	"github.com/kevlard/kevlard/gpu"
	"github.com/kevlard/kevlard/gpu/health"
)

// lookAtGPUs reads this host's GPUs once.
func lookAtGPUs() gpu.Host { return gpu.Look(gpu.Options{}) }

// visibleGPUs is the value of CUDA_VISIBLE_DEVICES, and whether it is set.
func visibleGPUs() (string, bool) { return os.LookupEnv(visibleVariable) }

// checkGPUs looks at drivers, devices and the backend library. Without a GPU that is
// configured, nothing that lacks is a fault.
func (d *doctor) checkGPUs(context.Context) []finding {
	const check = "gpu"
	var wanted []string
	for _, name := range d.cfg.Engine.Devices {
		if _, ok := cudaIndex(name); ok {
			wanted = append(wanted, name)
		}
	}
	h := d.probe.gpus()
	var out []finding
	switch {
	case h.NVML == nil:
		out = one(check, statusOK, "", "NVIDIA driver %s, %d GPUs", h.Driver, len(h.Devices))
	case errors.Is(h.NVML, gpu.ErrNoDriver) && len(wanted) == 0:
		if len(h.Devices) == 0 {
			return one(check, statusOK, "", "none is configured, and none was found")
		}
		out = one(check, statusOK, "", "none is configured; %d of AMD", len(h.Devices))
	case len(wanted) == 0:
		out = one(check, statusWarn, "mend the driver, or remove it", "none is configured; %v", h.NVML)
	default:
		out = one(check, statusFail, "install NVIDIA's driver for this kernel and see that nvidia-smi works; the daemon waits for it", "[engine] devices has %s: %v", strings.Join(wanted, ", "), h.NVML)
	}
	if len(wanted) > 0 {
		out = append(out, d.checkBackend(wanted)...)
		out = append(out, d.checkVisible(h, wanted)...)
	}
	if h.NVML == nil {
		out = append(out, checkDevices(h)...)
		out = append(out, checkXids(h)...)
	}
	return out
}

// checkBackend looks for the library with which engines compute on the GPUs.
func (d *doctor) checkBackend(wanted []string) []finding {
	const check = "backend"
	path, err := engine.Library(d.cfg.Engine.BackendDir, engine.Family(wanted[0]))
	if err == nil {
		err = engine.CheckLibrary(path, d.probe.program)
	}
	if err != nil {
		return one(check, statusFail, "build it with scripts/build-cuda-backend.sh from the sources of this kevlard, and set [engine] backend_dir", "[engine] devices has %s: %v", strings.Join(wanted, ", "), err)
	}
	return one(check, statusOK, "", "%s fits this program; whether it loads, the engine's start shows (kevlard status)", path)
}

// checkVisible finds out which GPU each configured device is, and whether it has the
// memory that is counted with.
func (d *doctor) checkVisible(h gpu.Host, wanted []string) []finding {
	const check, fix = "gpu-devices", "change [engine] devices, or the variable in the unit"
	if h.NVML != nil {
		return nil
	}
	visible, set := d.probe.visible()
	targets, err := gpu.Targets(h.Devices, visible, set)
	if err != nil {
		return one(check, statusFail, fix, "%v", err)
	}
	var names []string
	var out []finding
	for _, name := range wanted {
		n, _ := cudaIndex(name)
		if n >= len(targets) {
			return one(check, statusFail, fix, "[engine] devices has %s, and %d GPUs may be used (%s)", name, len(targets), visibility(visible, set))
		}
		free, total := targets[n].Memory()
		is := name + " is " + targets[n].Visible
		if total > 0 {
			is += fmt.Sprintf(" (%s of %s free)", byteSize(free), byteSize(total))
		}
		names = append(names, is)
		wants := int64(d.cfg.Engine.MemoryBytes)
		// What the daemon's own engines have taken is no want.
		idle := d.status == nil || !slices.ContainsFunc(d.status.Engines, func(e report.Engine) bool { return e.Device == name })
		switch {
		case total > 0 && wants > total:
			out = append(out, one(check, statusFail, "lower [engine] memory_bytes, or leave it out", "[engine] memory_bytes is %s, and %s", byteSize(wants), is)...)
		case planned(d.cfg) && wants == 0 && idle && (memory{free, total}).budget() == 0:
			out = append(out, one(check, statusFail, "make room on it (nvidia-smi shows who is there), or set [engine] memory_bytes", "%s, which is no room for a stage", is)...)
		}
	}
	if out != nil {
		return out
	}
	return one(check, statusOK, "", "%s", strings.Join(names, ", "))
}

// checkDevices looks at what the devices say of themselves.
func checkDevices(h gpu.Host) []finding {
	const check = "gpu-health"
	var out []finding
	for _, g := range h.Devices {
		add := func(status, fix, format string, args ...any) {
			out = append(out, one(check, status, fix, "GPU %d (%s): %s", g.Index, g.ID(), fmt.Sprintf(format, args...))...)
		}
		switch {
		case g.Lost != "":
			add(statusFail, "reboot the host; look at the GPU's seat and power if it comes again", "it can't be read: %s", g.Lost)
		case g.RemapFailed:
			add(statusFail, "have the GPU replaced", "a memory row could not be taken out of use")
		case g.Pending:
			add(statusWarn, "reset the GPU when it has no work: nvidia-smi --gpu-reset", "memory rows or pages wait for a reset to be taken out of use")
		}
		if g.MIG && len(g.Instances) == 0 {
			add(statusFail, "make an instance (nvidia-smi mig -cgi), or turn MIG off (nvidia-smi -mig 0)", "MIG is on, and there is no instance")
		}
		if g.Vendor == "nvidia" && !g.Persistence {
			add(statusWarn, "enable nvidia-persistenced: else the driver is set up anew with each first engine", "persistence mode is off")
		}
	}
	if len(out) == 0 {
		return one(check, statusOK, "", "nothing is wrong with what they say of themselves")
	}
	return out
}

// checkXids judges what the driver has reported since the host was booted.
func checkXids(h gpu.Host) []finding {
	const check = "xids"
	if h.Kernel != nil {
		return one(check, statusWarn, "run doctor as root", "what the driver reported in this boot can't be read: %v", h.Kernel)
	}
	var policy health.Policy
	_, reports := policy.Judge(1, health.Reading{Devices: h.Devices, Xids: h.Xids})
	seen := map[string]bool{}
	var out []finding
	for _, r := range slices.Backward(reports) { // the last one of each kind, the latest first
		key := fmt.Sprint(r.PCI, r.Code)
		if seen[key] || r.State == health.OK {
			continue
		}
		seen[key] = true
		status := statusWarn
		if r.State == health.Drain {
			status = statusFail
		}
		out = append(out, one(check, status, "reset the GPU or reboot the host; have the GPU replaced if it comes again", "GPU at %s: %s", r.PCI, r.Text)...)
	}
	if len(out) == 0 {
		return one(check, statusOK, "", "none that asks for anything since the host was booted (%d in all)", len(reports))
	}
	return out
}
