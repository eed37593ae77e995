//go:build cgo && linux

package gpu

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/kevlard/kevlard/gpu/health"
)

// driver is NVIDIA's driver as its library shows it. Its methods are for one goroutine at
// a time, besides that of events. A call can hang for as long as the driver does.
//
// A function that the library lacks (an older driver's) must not be called: the dynamic
// linker would end the process. So each is looked up before.
type driver struct {
	lib     nvml.Interface
	handles []nvml.Device
	known   []health.Device // what does not change, of the devices with these handles
}

// openDriver loads the library at path, "" for the system's.
func openDriver(path string) (*driver, error) {
	name := cmp.Or(path, libraryName)
	lib := nvml.New(nvml.WithLibraryPath(name))
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, fmt.Errorf("%w: %s can't be loaded", ErrNoDriver, name)
	default:
		return nil, fmt.Errorf("NVIDIA's driver: %s: see dmesg and nvidia-smi", nvmlError(ret))
	}
	return &driver{lib: lib}, nil
}

// nvmlError is what a return value means. The library's own texts are not used, since it
// may not have a function for them.
func nvmlError(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "the kernel module is not loaded"
	case nvml.ERROR_NO_PERMISSION:
		return "no permission to ask it"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "the kernel module and the library are of different versions: reboot, or load the module again"
	case nvml.ERROR_GPU_IS_LOST:
		return "the GPU is lost"
	case nvml.ERROR_RESET_REQUIRED:
		return "the GPU needs a reset"
	}
	return fmt.Sprintf("error %d", int(ret))
}

func (d *driver) close() { d.lib.Shutdown() }

func (d *driver) has(symbol string) bool { return d.lib.Extensions().LookupSymbol(symbol) == nil }

// version is that of the driver, "" if it does not say.
func (d *driver) version() string {
	if !d.has("nvmlSystemGetDriverVersion") {
		return ""
	}
	v, ret := d.lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return ""
	}
	return v
}

// find lists the devices anew.
func (d *driver) find() error {
	n, ret := d.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("count NVIDIA's GPUs: %s", nvmlError(ret))
	}
	d.handles, d.known = nil, nil
	for i := range min(n, maxDevices) {
		h, ret := d.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			// It has no name and no address by which it could be told from others.
			continue
		}
		k := health.Device{Index: i, Vendor: "nvidia"}
		k.UUID, _ = h.GetUUID()
		if d.has("nvmlDeviceGetName") {
			k.Name, _ = h.GetName()
		}
		if pci, ret := h.GetPciInfo(); ret == nvml.SUCCESS {
			k.PCI = pciAddress(pci)
		}
		if k.ID() != "" {
			d.handles, d.known = append(d.handles, h), append(d.known, k)
		}
	}
	return nil
}

// pciAddress writes an address as the kernel does.
func pciAddress(p nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", p.Domain, p.Bus, p.Device)
}

// read reads all devices. What one does not tell stays zero.
func (d *driver) read() ([]health.Device, error) {
	if d.handles == nil {
		if err := d.find(); err != nil {
			return nil, err
		}
	}
	var out []health.Device
	for i, h := range d.handles {
		out = append(out, d.device(h, d.known[i]))
	}
	return out, nil
}

func (d *driver) device(h nvml.Device, out health.Device) health.Device {
	m, ret := h.GetMemoryInfo()
	switch ret {
	case nvml.SUCCESS:
		out.MemoryUsed, out.MemoryFree, out.MemoryTotal = int64(m.Used), int64(m.Free), int64(m.Total)
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED:
		out.Lost = nvmlError(ret)
		return out
	}
	if t, ret := h.GetTemperature(nvml.TEMPERATURE_GPU); ret == nvml.SUCCESS {
		out.Temperature = int(t)
	}
	if d.has("nvmlDeviceGetTemperatureThreshold") {
		for _, t := range []struct {
			kind nvml.TemperatureThresholds
			to   *int
		}{{nvml.TEMPERATURE_THRESHOLD_SLOWDOWN, &out.Slowdown}, {nvml.TEMPERATURE_THRESHOLD_SHUTDOWN, &out.Shutdown}} {
			if v, ret := h.GetTemperatureThreshold(t.kind); ret == nvml.SUCCESS {
				*t.to = int(v)
			}
		}
	}
	out.Throttle = d.throttle(h)
	d.memoryErrors(h, &out)
	if d.has("nvmlDeviceGetPersistenceMode") {
		mode, ret := h.GetPersistenceMode()
		out.Persistence = ret == nvml.SUCCESS && mode == nvml.FEATURE_ENABLED
	}
	d.cut(h, &out)
	return out
}

// throttle names why clocks are held down.
func (d *driver) throttle(h nvml.Device) []string {
	var bits uint64
	ret := nvml.Return(nvml.ERROR_NOT_SUPPORTED)
	switch {
	case d.has("nvmlDeviceGetCurrentClocksEventReasons"):
		bits, ret = h.GetCurrentClocksEventReasons()
	case d.has("nvmlDeviceGetCurrentClocksThrottleReasons"): // the same, before driver 535
		bits, ret = h.GetCurrentClocksThrottleReasons()
	}
	if ret != nvml.SUCCESS {
		return nil
	}
	var out []string
	for _, r := range []struct {
		mask uint64
		name string
	}{
		{nvml.ClocksEventReasonSwThermalSlowdown | nvml.ClocksThrottleReasonHwThermalSlowdown, health.ThrottleThermal},
		{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, health.ThrottleBrake},
		{nvml.ClocksThrottleReasonHwSlowdown, health.ThrottleHW},
		{nvml.ClocksEventReasonSwPowerCap, health.ThrottlePower},
	} {
		if bits&r.mask != 0 {
			out = append(out, r.name)
		}
	}
	return out
}

func (d *driver) memoryErrors(h nvml.Device, out *health.Device) {
	if d.has("nvmlDeviceGetTotalEccErrors") {
		if n, ret := h.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); ret == nvml.SUCCESS {
			out.ECCVolatile = n
		}
		if n, ret := h.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.AGGREGATE_ECC); ret == nvml.SUCCESS {
			out.ECCAggregate = n
		}
	}
	if d.has("nvmlDeviceGetRemappedRows") { // from Ampere on
		if _, _, pending, failed, ret := h.GetRemappedRows(); ret == nvml.SUCCESS {
			out.Pending, out.RemapFailed = pending, failed
		}
	}
	if d.has("nvmlDeviceGetRetiredPagesPendingStatus") { // before
		if pending, ret := h.GetRetiredPagesPendingStatus(); ret == nvml.SUCCESS && pending == nvml.FEATURE_ENABLED {
			out.Pending = true
		}
	}
}

// cut notes whether MIG is on, and the instances.
func (d *driver) cut(h nvml.Device, out *health.Device) {
	if !d.has("nvmlDeviceGetMigMode") || !d.has("nvmlDeviceGetMaxMigDeviceCount") || !d.has("nvmlDeviceGetMigDeviceHandleByIndex") {
		return
	}
	mode, _, ret := h.GetMigMode()
	if ret != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE {
		return
	}
	out.MIG = true
	n, ret := h.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return
	}
	for i := range min(n, maxInstances) {
		in, ret := h.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // none is at this index
		}
		uuid, ret := in.GetUUID()
		if ret != nvml.SUCCESS {
			continue
		}
		inst := health.Instance{UUID: uuid}
		if d.has("nvmlDeviceGetName") {
			inst.Name, _ = in.GetName()
		}
		if m, ret := in.GetMemoryInfo(); ret == nvml.SUCCESS {
			inst.MemoryFree, inst.MemoryTotal = int64(m.Free), int64(m.Total)
		}
		out.Instances = append(out.Instances, inst)
	}
}

// events hands Xids to got until ctx ends. It returns at once if the driver has no events.
func (d *driver) events(ctx context.Context, got func(health.Xid)) {
	for _, symbol := range []string{"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlDeviceRegisterEvents", "nvmlEventSetWait"} {
		if !d.has(symbol) {
			return
		}
	}
	set, ret := d.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return
	}
	defer set.Free()
	registered := false
	for _, h := range d.handles {
		registered = h.RegisterEvents(nvml.EventTypeXidCriticalError, set) == nvml.SUCCESS || registered
	}
	for registered && ctx.Err() == nil {
		e, ret := set.Wait(uint32(eventWait.Milliseconds()))
		switch {
		case ret == nvml.ERROR_TIMEOUT:
		case ret != nvml.SUCCESS:
			return // the device is gone, which readings say better
		case e.EventType == nvml.EventTypeXidCriticalError:
			if pci, ret := e.Device.GetPciInfo(); ret == nvml.SUCCESS {
				got(health.Xid{PCI: strings.TrimSuffix(pciAddress(pci), ".0"), Code: int(e.EventData)})
			}
		}
	}
}

// devices is what find found.
func (d *driver) devices() []health.Device { return slices.Clone(d.known) }
