package health

import (
	"slices"
	"strings"
)

// Device is one reading of one GPU. Zero values that can't be: not known.
type Device struct {
	Index  int    `json:"index"`          // in the order of the PCI bus
	UUID   string `json:"uuid,omitempty"` // GPU-...; empty where the vendor has none
	Name   string `json:"name,omitempty"`
	Vendor string `json:"vendor,omitempty"` // nvidia or amd
	PCI    string `json:"pci,omitempty"`    // domain:bus:device.function, such as 0000:3b:00.0

	MemoryUsed  int64 `json:"memory_used,omitempty"` // bytes, with what the driver reserves
	MemoryFree  int64 `json:"memory_free,omitempty"`
	MemoryTotal int64 `json:"memory_total,omitempty"`

	Temperature int `json:"temperature,omitempty"` // in degrees Celsius
	Slowdown    int `json:"slowdown,omitempty"`    // the temperature at which it slows itself down
	Shutdown    int `json:"shutdown,omitempty"`    // the temperature at which it turns itself off

	// Throttle is why its clocks are lower than they could be, of those that concern its
	// health: see the constants.
	Throttle []string `json:"throttle,omitempty"`

	ECCVolatile  uint64 `json:"ecc_volatile,omitempty"`  // uncorrected errors since the driver was loaded
	ECCAggregate uint64 `json:"ecc_aggregate,omitempty"` // uncorrected errors of its life
	Pending      bool   `json:"pending,omitempty"`       // pages or rows wait for a reset to be retired or remapped
	RemapFailed  bool   `json:"remap_failed,omitempty"`  // a row could not be remapped

	Persistence bool `json:"persistence,omitempty"` // the driver stays loaded without clients
	// MIG says that the device is cut into instances: it takes no work itself.
	MIG       bool       `json:"mig,omitempty"`
	Instances []Instance `json:"instances,omitempty"`

	// Lost says why the device can't be read any more; empty if it can.
	Lost string `json:"lost,omitempty"`
}

// Instance is a part of a GPU that is cut by MIG.
type Instance struct {
	UUID        string `json:"uuid"` // MIG-...
	Name        string `json:"name,omitempty"`
	MemoryFree  int64  `json:"memory_free,omitempty"`
	MemoryTotal int64  `json:"memory_total,omitempty"`
}

// The reasons for low clocks that are looked at.
const (
	ThrottleThermal = "thermal"     // it is too hot
	ThrottleBrake   = "power-brake" // the host's power supply asks for it
	ThrottleHW      = "hardware"    // the hardware slows itself down, by heat or power
	ThrottlePower   = "power-cap"   // the software power cap; usual under load, and no fault
)

// Reading is what was read of a host's GPUs at one time.
type Reading struct {
	Driver string `json:"driver,omitempty"` // version
	// NoDriver says why NVIDIA's driver could not be asked; empty if it was.
	NoDriver string   `json:"no_driver,omitempty"`
	Devices  []Device `json:"devices"`
	Xids     []Xid    `json:"-"` // reported since the last reading
	// Kernel is lines of the kernel log, for recordings; ParseXid reads them.
	Kernel []string `json:"kernel,omitempty"`
}

// slot is the part of a PCI address that all notations have: 0000:3b:00.
func slot(pci string) string {
	s := strings.ToLower(pci)
	s, _, _ = strings.Cut(s, ".")
	parts := strings.Split(s, ":")
	if len(parts) == 2 { // without domain
		parts = slices.Insert(parts, 0, "0000")
	}
	if len(parts) == 3 && len(parts[0]) > 4 { // NVML writes eight digits
		parts[0] = parts[0][len(parts[0])-4:]
	}
	return strings.Join(parts, ":")
}

// SamePCI reports whether two addresses name the same device, whatever their notation.
func SamePCI(a, b string) bool { return a != "" && b != "" && slot(a) == slot(b) }

// ID names the device for people and across readings: its UUID, else its PCI address.
func (d Device) ID() string {
	if d.UUID != "" {
		return d.UUID
	}
	return d.PCI
}
