package gpu

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kevlard/kevlard/gpu/health"
)

// amdVendor is AMD's number on the PCI bus.
const amdVendor = "0x1002"

// readAMD reads AMD's GPUs from sysfs below root, in the order of the PCI bus. One without
// its own memory count (an old or integrated one without the driver amdgpu) is left out.
func readAMD(root string) []health.Device {
	cards, err := filepath.Glob(filepath.Join(root, "sys/class/drm/card*"))
	if err != nil {
		return nil // the pattern is ours
	}
	var out []health.Device
	for _, card := range cards {
		number := strings.TrimPrefix(filepath.Base(card), "card")
		if _, err := strconv.Atoi(number); err != nil {
			continue // a connector, such as card0-DP-1
		}
		dir := filepath.Join(card, "device")
		if text(dir, "vendor") != amdVendor {
			continue
		}
		total, ok := integer(dir, "mem_info_vram_total")
		if !ok || len(out) == maxDevices {
			continue
		}
		d := health.Device{Vendor: "amd", Name: text(dir, "product_name"), UUID: amdID(text(dir, "unique_id")), MemoryTotal: total}
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			d.PCI = filepath.Base(real)
		}
		if used, ok := integer(dir, "mem_info_vram_used"); ok {
			d.MemoryUsed, d.MemoryFree = used, max(0, total-used)
		}
		d.Temperature, d.Slowdown, d.Shutdown = hwmon(dir)
		d.ECCVolatile = uncorrectable(filepath.Join(dir, "ras"))
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b health.Device) int { return strings.Compare(a.PCI, b.PCI) })
	for i := range out {
		out[i].Index = i
	}
	return out
}

// amdID makes a UUID of the chip's number; cards for desks have none.
func amdID(unique string) string {
	if unique == "" || strings.Trim(unique, "0") == "" {
		return ""
	}
	return "GPU-" + unique // as HIP_VISIBLE_DEVICES has it
}

// hwmon returns temperatures in degrees: now, where the card slows down, where it turns
// off. Of its sensors the hottest counts, which amdgpu calls junction or edge.
func hwmon(dir string) (now, slow, off int) {
	inputs, err := filepath.Glob(filepath.Join(dir, "hwmon/hwmon*/temp*_input"))
	if err != nil {
		return 0, 0, 0 // the pattern is ours
	}
	for _, in := range inputs {
		base := strings.TrimSuffix(filepath.Base(in), "_input")
		at := filepath.Dir(in)
		if label := text(at, base+"_label"); label == "mem" {
			continue // its limits are others
		}
		v, ok := integer(at, base+"_input")
		if !ok || int(v/1000) <= now {
			continue
		}
		now = int(v / 1000)
		crit, _ := integer(at, base+"_crit")
		emergency, _ := integer(at, base+"_emergency")
		slow, off = int(crit/1000), int(emergency/1000)
	}
	return now, slow, off
}

// uncorrectable adds up the uncorrectable errors of all blocks: files that have lines such
// as "ue: 0".
func uncorrectable(dir string) uint64 {
	files, err := filepath.Glob(filepath.Join(dir, "*_err_count"))
	if err != nil {
		return 0 // the pattern is ours
	}
	var sum uint64
	for _, f := range files {
		for line := range strings.Lines(text(filepath.Dir(f), filepath.Base(f))) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "ue:"); ok {
				n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 64)
				if err == nil {
					sum += n
				}
			}
		}
	}
	return sum
}

// text returns what a file of sysfs says, "" if it is not there.
func text(dir, name string) string {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSysfs))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func integer(dir, name string) (int64, bool) {
	n, err := strconv.ParseInt(text(dir, name), 10, 64)
	return n, err == nil && n >= 0
}
