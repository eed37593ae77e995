package daemon

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/node"
)

// The states of a device.
const (
	DeviceOK    = "ok"
	DeviceAvoid = "avoid" // it works, and work should go elsewhere while it can
	DeviceDrain = "drain" // its sessions should move, then somebody should look at it
)

// DeviceHealth is one device of this host as it was judged.
type DeviceHealth struct {
	Index  int
	ID     string // of its vendor; by it a device is known again
	Name   string
	PCI    string
	Used   bool   // stages of this node are on it: others are only shown
	State  string // DeviceOK, DeviceAvoid or DeviceDrain
	Cause  string // one word
	Reason string // for people
	Fix    string // what to do about it

	MemoryUsed, MemoryTotal int64 // bytes; total 0: not known
	Temperature             int   // in degrees Celsius; 0: not known
	Uncorrected             uint64
	MIG                     bool
}

// DeviceXid is an error that NVIDIA's driver reported.
type DeviceXid struct {
	PCI  string
	Code int
	Text string
}

// DeviceNews is what was read of this host's devices at one time.
type DeviceNews struct {
	Devices []DeviceHealth
	Xids    []DeviceXid // since the last news
	// Missing names the devices that were configured and are not there, and says why; ""
	// if all are.
	Missing string
}

// key tells complaints apart: a temperature is the same complaint at any degree.
func (h DeviceHealth) key() string {
	if h.Cause == "xid" || h.Cause == "lost" {
		return h.ID + " " + h.Reason
	}
	return h.ID + " " + h.Cause
}

func (h DeviceHealth) title() string {
	t := fmt.Sprintf("GPU %d (%s", h.Index, h.ID)
	if h.Name != "" {
		t += ", " + h.Name
	}
	return t + ")"
}

// devices is what is known of them, and which Xids were counted.
type devices struct {
	mu      sync.Mutex
	last    []DeviceHealth // sorted as they came
	missing string         // as DeviceNews has it
	told    node.Health    // what the machine was told
	xids    map[xidKey]uint64
	watch   func(ctx context.Context, tell func(DeviceNews)) error // nil: nothing watches
}

type xidKey struct {
	pci  string
	code int
}

func (d *devices) get() []DeviceHealth {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}

func (d *devices) lacks() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.missing
}

// watchDevices is the part that hears of the devices.
func (d *Daemon) watchDevices(ctx context.Context) error {
	if d.devices.watch == nil {
		<-ctx.Done()
		return nil
	}
	return d.devices.watch(ctx, d.hearOfDevices)
}

// hearOfDevices takes news: what changed becomes events, the worst of what this node
// computes on is told to the machine, and what is missing to the others.
func (d *Daemon) hearOfDevices(n DeviceNews) {
	for _, x := range n.Xids[:min(len(n.Xids), maxXids)] {
		d.devices.count(x)
		if d.seldom.allow(fmt.Sprintf("xid %d %s", x.Code, x.PCI)) {
			d.report(node.Report{Type: "gpu-xid", Cause: "xid-" + strconv.Itoa(x.Code), Detail: fmt.Sprintf("GPU at %s: %s", x.PCI, x.Text)})
		}
	}
	devices := n.Devices[:min(len(n.Devices), maxDevices)]
	d.devices.mu.Lock()
	before := d.devices.last
	d.devices.last = slices.Clone(devices)
	told := d.devices.told
	health := worst(devices)
	if health.Key == told.Key && health.Avoid == told.Avoid && health.Drain == told.Drain {
		health = told
	}
	d.devices.told = health
	lacked := d.devices.missing
	d.devices.missing = n.Missing
	d.devices.mu.Unlock()
	if n.Missing != lacked {
		d.lacks(n.Missing)
	}

	for _, h := range devices {
		was := DeviceHealth{State: DeviceOK}
		if i := slices.IndexFunc(before, func(o DeviceHealth) bool { return o.ID == h.ID }); i >= 0 {
			was = before[i]
		}
		if was.State == h.State && was.key() == h.key() {
			continue
		}
		if h.State != DeviceOK || was.State != DeviceOK {
			d.report(node.Report{Type: "gpu-" + h.State, Cause: h.Cause, Detail: strings.TrimSuffix(h.title()+": "+h.Reason, ": ")})
		}
	}
	if health != told {
		d.post(health)
	}
}

// lacks tells of what is missing, or that nothing is any more.
func (d *Daemon) lacks(missing string) {
	if missing != "" {
		d.report(node.Report{Type: "device-missing", Detail: missing})
	} else {
		d.report(node.Report{Type: "device-found"})
	}
	version, changed, err := d.records.lacks(missing)
	if err != nil {
		d.log.Warn("other nodes are not told of what is missing", "error", err)
	}
	if changed {
		d.ring.SetRecord(version)
	}
}

// worst is what devices that are used mean for the node.
func worst(devices []DeviceHealth) node.Health {
	var out node.Health
	for _, h := range devices {
		if !h.Used || h.State == DeviceOK || out.Drain && h.State != DeviceDrain {
			continue
		}
		if h.State == DeviceDrain && !out.Drain {
			out = node.Health{Avoid: true, Drain: true} // what only avoids is not of interest any more
		}
		out.Avoid = true
		if out.Key != "" {
			out.Key += "; "
			out.Reason += "; "
		}
		out.Key += h.key()
		out.Reason += h.title() + ": " + h.Reason
	}
	return out
}

// count counts an Xid. Those beyond the bound are counted together.
func (d *devices) count(x DeviceXid) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.xids == nil {
		d.xids = map[xidKey]uint64{}
	}
	k := xidKey{x.PCI, x.Code}
	if _, known := d.xids[k]; !known && len(d.xids) >= maxXidKinds {
		k = xidKey{"other", 0}
	}
	d.xids[k]++
}

// deviceMetrics tells of the devices.
func (g gauges) deviceMetrics(emit func(kind prometheus.ValueType, name, help string, v float64, labels ...string)) {
	for _, h := range g.d.devices.get() {
		labels := []string{"gpu", strconv.Itoa(h.Index), "id", h.ID}
		state := map[string]float64{DeviceOK: 0, DeviceAvoid: 1, DeviceDrain: 2}[h.State]
		emit(prometheus.GaugeValue, "kevlard_gpu_health", "How a GPU of this host was judged: 0 is ok, 1 avoid, 2 drain.", state, labels...)
		emit(prometheus.GaugeValue, "kevlard_gpu_uncorrected_errors", "Uncorrected memory errors of a GPU since its driver was loaded.", float64(h.Uncorrected), labels...)
		if h.Temperature > 0 {
			emit(prometheus.GaugeValue, "kevlard_gpu_temperature_celsius", "Temperature of a GPU.", float64(h.Temperature), labels...)
		}
		if h.MemoryTotal > 0 {
			emit(prometheus.GaugeValue, "kevlard_gpu_memory_used_bytes", "Memory of a GPU that is in use, by whatever.", float64(h.MemoryUsed), labels...)
			emit(prometheus.GaugeValue, "kevlard_gpu_memory_size_bytes", "Memory of a GPU.", float64(h.MemoryTotal), labels...)
		}
	}
	g.d.devices.mu.Lock()
	defer g.d.devices.mu.Unlock()
	for k, n := range g.d.devices.xids {
		emit(prometheus.CounterValue, "kevlard_gpu_xids_total", "Errors that NVIDIA's driver reported since the daemon was started.", float64(n), "pci", k.pci, "xid", strconv.Itoa(k.code))
	}
}

// describeDevices is what status shows.
func (d *Daemon) describeDevices() []report.GPU {
	out := []report.GPU{}
	for _, h := range d.devices.get() {
		out = append(out, report.GPU{
			Index: h.Index, ID: h.ID, Name: h.Name, PCI: h.PCI, Used: h.Used, State: h.State, Cause: h.Cause, Reason: h.Reason, MIG: h.MIG,
			MemoryUsed: h.MemoryUsed, MemoryTotal: h.MemoryTotal, Temperature: h.Temperature,
		})
	}
	return out
}

// problems names the devices that are missing or not well.
func (d *devices) problems() []report.Problem {
	out := []report.Problem{} // never null
	if why := d.lacks(); why != "" {
		out = append(out, report.Problem{What: why, Fix: "it is taken as soon as it is there; `kevlard doctor` looks for what it needs"})
	}
	for _, h := range d.get() {
		if h.State == DeviceOK {
			continue
		}
		what := h.title() + ": " + h.Reason
		switch {
		case !h.Used:
			what += " (no stage of this node is on it)"
		case h.State == DeviceAvoid:
			what += ": sessions go to other nodes as far as there are others"
		default:
			what += ": this node drains itself"
		}
		out = append(out, report.Problem{What: what, Fix: h.Fix})
	}
	return out
}
