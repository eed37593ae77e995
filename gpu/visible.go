package gpu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kevlard/kevlard/gpu/health"
)

// Target is what a stage can be put on: a whole GPU, or a MIG instance of one.
type Target struct {
	// Visible is what CUDA_VISIBLE_DEVICES must be for a process to see just it.
	Visible string
	// Device is the GPU (of an instance: its parent); its ID is empty if nothing was read
	// of it.
	Device health.Device
	// Instance is set for a MIG instance.
	Instance *health.Instance
}

// Memory is the bytes of the target's memory that are free, and all of them; 0 if the
// driver does not tell.
func (t Target) Memory() (free, total int64) {
	if t.Instance != nil {
		return t.Instance.MemoryFree, t.Instance.MemoryTotal
	}
	return t.Device.MemoryFree, t.Device.MemoryTotal
}

// Targets lists what cuda:0, cuda:1, ... mean on this host: the GPUs of devices in the
// order of the PCI bus, or those of visible, the value of CUDA_VISIBLE_DEVICES, in its
// order, if that is set. A GPU that is cut by MIG takes no work itself: without visible,
// its instances stand in its place.
//
// Entries of visible are indices in the order of the PCI bus, beginnings of UUIDs
// (GPU-...), or MIG UUIDs (MIG-...). CUDA silently ignores what follows an entry that
// names nothing; here that is an error, since a stage would land on another GPU than the
// one that was meant. Empty, or with -1 or NoDevFiles as its first entry, it hides all.
func Targets(devices []health.Device, visible string, set bool) ([]Target, error) {
	devices = slices.DeleteFunc(slices.Clone(devices), func(d health.Device) bool { return d.Vendor == "amd" })
	if !set {
		var out []Target
		for _, d := range devices {
			out = append(out, whole(d)...)
		}
		return out, nil
	}
	var out []Target
	for i, entry := range strings.Split(visible, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" || entry == "-1" || entry == "NoDevFiles" {
			if i == 0 && !strings.Contains(visible, ",") || entry != "" {
				return out, nil // the end, as CUDA has it
			}
			return nil, fmt.Errorf("CUDA_VISIBLE_DEVICES is %q: entry %d is empty", visible, i+1)
		}
		t, err := find(devices, entry)
		if err != nil {
			return nil, fmt.Errorf("CUDA_VISIBLE_DEVICES is %q: entry %d, %w", visible, i+1, err)
		}
		if slices.ContainsFunc(out, func(o Target) bool { return o.Visible == t.Visible }) {
			return nil, fmt.Errorf("CUDA_VISIBLE_DEVICES is %q: entry %d names %s a second time", visible, i+1, t.Visible)
		}
		out = append(out, t)
	}
	return out, nil
}

// whole is what a GPU offers: itself, or its instances.
func whole(d health.Device) []Target {
	if !d.MIG {
		return []Target{{Visible: d.ID(), Device: d}}
	}
	var out []Target
	for _, in := range d.Instances {
		out = append(out, Target{Visible: in.UUID, Device: d, Instance: &in})
	}
	return out
}

func find(devices []health.Device, entry string) (Target, error) {
	if n, err := strconv.Atoi(entry); err == nil {
		i := slices.IndexFunc(devices, func(d health.Device) bool { return d.Index == n })
		if i < 0 {
			return Target{}, fmt.Errorf("%d: this host has %s", n, count(devices))
		}
		d := devices[i]
		switch {
		case !d.MIG:
			return Target{Visible: d.ID(), Device: d}, nil
		case len(d.Instances) == 0:
			return Target{}, fmt.Errorf("%d: MIG is on and no instance was made: make one with nvidia-smi mig -cgi, or turn MIG off", n)
		default: // CUDA takes the first instance then
			return Target{Visible: d.Instances[0].UUID, Device: d, Instance: &d.Instances[0]}, nil
		}
	}
	var found []Target
	for _, d := range devices {
		if strings.HasPrefix(entry, "GPU-") && strings.HasPrefix(d.UUID, entry) {
			if d.MIG {
				return Target{}, fmt.Errorf("%s: MIG is on there: name one of its instances (nvidia-smi -L)", entry)
			}
			found = append(found, Target{Visible: d.UUID, Device: d})
		}
		for _, in := range d.Instances {
			if strings.HasPrefix(entry, "MIG-") && in.UUID == entry {
				found = append(found, Target{Visible: in.UUID, Device: d, Instance: &in})
			}
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return Target{}, fmt.Errorf("%s: it names %d GPUs: give more of the UUID", entry, len(found))
	}
	return Target{}, fmt.Errorf("%s: this host has no such GPU: want an index, GPU-UUID or MIG-UUID (nvidia-smi -L)", entry)
}

func count(devices []health.Device) string {
	switch len(devices) {
	case 0:
		return "none"
	case 1:
		return "only 0"
	}
	return fmt.Sprintf("0 to %d", len(devices)-1)
}
