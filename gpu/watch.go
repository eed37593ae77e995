package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/kevlard/kevlard/gpu/health"
)

// libraryName is that of NVIDIA's management library, which comes with the driver.
const libraryName = "libnvidia-ml.so.1"

// RecordingVariable names the recording that stands for this host's GPUs; see the package
// comment.
const RecordingVariable = "KEVLARD_GPU_RECORDING"

// ErrNoDriver says that there is no driver of NVIDIA's to ask.
var ErrNoDriver = errors.New("NVIDIA's driver is not installed")

// Options say where to look. The zero value is this host.
type Options struct {
	Root    string        // of the file system; default "/"
	Library string        // path of NVML; default: the dynamic linker finds it
	Every   time.Duration // between readings; default 2 s
	Stuck   time.Duration // after which a driver that does not answer counts as lost; default 30 s
	Log     *slog.Logger  // default: discarded
}

func (o Options) withDefaults() Options {
	o.Root = cmp.Or(o.Root, "/")
	o.Every = cmp.Or(o.Every, readEvery)
	o.Stuck = cmp.Or(o.Stuck, 15*o.Every)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o Options) kernel() string { return filepath.Join(o.Root, "dev/kmsg") }

// Host is what was found on this host once.
type Host struct {
	health.Reading
	NVML   error // why NVIDIA's driver was not asked; nil if it was
	Kernel error // why the kernel log could not be read
}

// Look reads everything once: devices, and the Xids of this boot.
func Look(o Options) Host {
	o = o.withDefaults()
	var h Host
	d, err := openDriver(o.Library)
	if err == nil {
		h.Driver = d.version()
		h.Devices, err = d.read()
		d.close()
	}
	h.NVML = err
	h.Devices = append(h.Devices, readAMD(o.Root)...)
	h.Xids, h.Kernel = bootXids(o.kernel())
	return h
}

// Watch reads the GPUs of this host until ctx ends and hands each reading to yield, which
// is called by one goroutine. Where there is no GPU it yields readings without devices,
// and looks for a driver again with each. The error is always nil: what can't be read is
// part of the readings, or of the log.
func Watch(ctx context.Context, o Options, yield func(health.Reading)) error {
	w := &watch{o: o.withDefaults(), yield: yield, xids: make(chan health.Xid, xidQueue)}
	var parts sync.WaitGroup
	defer parts.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	kernel, err := openKernel(w.o.kernel(), false)
	if err == nil {
		parts.Go(func() {
			if err := followKernel(ctx, kernel, w.xid); err != nil {
				w.o.Log.Warn("Xids in the kernel log are not seen any more", "error", err)
			}
		})
	}
	w.logged = err == nil
	w.run(ctx)
	return nil
}

type watch struct {
	o      Options
	yield  func(health.Reading)
	xids   chan health.Xid
	logged bool // the kernel log tells of Xids, with more text than NVML's events, or these do
	driver *driver
	said   string // the last reason for no driver
	last   []health.Device
}

func (w *watch) xid(x health.Xid) {
	select {
	case w.xids <- x:
	default: // full: the first ones matter
	}
}

// run reads again and again. Each reading has a goroutine, because a call can hang as
// long as the driver does; then the devices are told as lost, and that goroutine is left.
// For the same reason nobody waits for that of the events, and the library stays open.
func (w *watch) run(ctx context.Context) {
	ticker := time.NewTicker(w.o.Every)
	defer ticker.Stop()
	for {
		done := make(chan health.Reading, 1)
		go func() { done <- w.read(ctx) }()
		stuck := time.NewTimer(w.o.Stuck)
		var r health.Reading
		for answered := false; !answered; {
			select {
			case r = <-done:
				answered = true
			case <-stuck.C:
				why := fmt.Sprintf("the driver has not answered for %v", w.o.Stuck)
				w.tell(health.Reading{NoDriver: why, Devices: lost(w.last, why)})
				stuck.Reset(w.o.Every)
			case <-ctx.Done():
				stuck.Stop()
				return
			}
		}
		stuck.Stop()
		w.last = r.Devices
		w.tell(r)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// tell yields a reading with the Xids that came meanwhile.
func (w *watch) tell(r health.Reading) {
	for len(r.Xids) < xidQueue {
		select {
		case x := <-w.xids:
			r.Xids = append(r.Xids, x)
			continue
		default:
		}
		break
	}
	w.yield(r)
}

func lost(devices []health.Device, why string) []health.Device {
	var out []health.Device
	for _, d := range devices {
		d.Lost = why
		out = append(out, d)
	}
	return out
}

// read asks the drivers, and opens NVIDIA's if it is not.
func (w *watch) read(ctx context.Context) health.Reading {
	if w.driver == nil {
		d, err := openDriver(w.o.Library)
		if err != nil {
			if !errors.Is(err, ErrNoDriver) && err.Error() != w.said {
				w.said = err.Error()
				w.o.Log.Warn("NVIDIA's GPUs are not seen", "error", err)
			}
			return health.Reading{NoDriver: err.Error(), Devices: readAMD(w.o.Root)}
		}
		w.driver, w.said = d, ""
	}
	devices, err := w.driver.read()
	if err != nil {
		devices = lost(w.driver.devices(), err.Error())
	}
	if err == nil && len(devices) > 0 && !w.logged {
		w.logged = true
		go w.driver.events(ctx, w.xid)
	}
	return health.Reading{Devices: append(devices, readAMD(w.o.Root)...)}
}
