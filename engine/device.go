//go:build cgo

package engine

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"runtime"
	"unsafe"

	fsggml "github.com/ollama/ollama/fs/ggml"
	"github.com/ollama/ollama/ml"
	"golang.org/x/sys/unix"
)

// device is what a stage computes on: the CPU (the zero value), or the one GPU that this
// process sees.
type device struct {
	family string
	about  string // for people, and for the numerics class
	id     ml.DeviceID
	dev    unsafe.Pointer // ggml's handle; nil for the CPU
}

// onGPU reports whether it is not the CPU.
func (d device) onGPU() bool { return d.dev != nil }

// openDevice finds the device of spec and loads its library, once in the life of the
// process and before any stage was made. The caller holds computeMu.
func openDevice(spec Spec) (device, error) {
	// Else the library would load backends itself, from wherever this program lies.
	if err := os.Setenv("OLLAMA_LIBRARY_PATH", ""); err != nil {
		return device{}, fmt.Errorf("forbid the search for backends: %w", err)
	}
	family := cmp.Or(spec.Device, CPU)
	if family == CPU {
		return device{family: CPU}, nil
	}
	if err := loadBackend(spec.Library); err != nil {
		return device{}, err
	}
	devices, err := gpus()
	if err != nil {
		return device{}, err
	}
	if len(devices) != 1 {
		return device{}, fmt.Errorf("%s finds %d devices, want just one: is the driver installed and loaded, and does its version suit the library? CUDA_VISIBLE_DEVICES is %q", spec.Library, len(devices), os.Getenv("CUDA_VISIBLE_DEVICES"))
	}
	info := devices[0]
	d := device{family: family, about: info.Description, id: info.DeviceID, dev: deviceByName(info.Name)}
	if d.dev == nil {
		return device{}, fmt.Errorf("%s: ggml has no device %s", spec.Library, info.Name)
	}
	return d, nil
}

// gpus lists the GPUs of the loaded libraries.
func gpus() (_ []ml.DeviceInfo, err error) {
	defer recoverTo(&err)
	fd, err := unix.MemfdCreate("kevlard-probe", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create probe: %w", err)
	}
	f := os.NewFile(uintptr(fd), "kevlard-probe")
	defer f.Close()
	infos := []*fsggml.Tensor{{Name: "output.none", Shape: []uint64{1}, WriterTo: noData{}}}
	if err := fsggml.WriteGGUF(f, fsggml.KV{"general.architecture": "llama", "llama.block_count": uint32(1)}, infos); err != nil {
		return nil, fmt.Errorf("write probe: %w", err)
	}
	if end, err := f.Seek(0, 1); err != nil || f.Truncate(end+4096) != nil {
		return nil, fmt.Errorf("size probe: %w", err)
	}
	b, err := ml.NewBackend(fmt.Sprintf("/proc/self/fd/%d", fd), ml.BackendParams{NumThreads: 1})
	if err != nil {
		return nil, fmt.Errorf("probe devices: %w", err)
	}
	defer b.Close()
	return b.BackendDevices(), nil
}

// placement is where a stage's layers and its head go.
func (d device) placement(spec Spec, layers int) ml.GPULayersList {
	if !d.onGPU() {
		return nil
	}
	g := ml.GPULayers{DeviceID: d.id}
	for i := spec.Layers.Lo; i < spec.Layers.Hi; i++ {
		g.Layers = append(g.Layers, i)
	}
	if spec.Layers.Hi == layers {
		g.Layers = append(g.Layers, layers) // the head
	}
	return ml.GPULayersList{g}
}

// flashes reports whether the device has flash attention for heads of this stage. CUDA has
// it for some sizes only, and ggml would silently compute the others on the CPU.
func (s *Stage) flashes() bool {
	ctx := s.backend.NewContextSize(32)
	defer ctx.Close()
	w := s.w
	q := ctx.Input().Empty(ml.DTypeF32, w.HeadDim, w.Heads, 1)
	k := ctx.Input().Empty(ml.DTypeF32, w.HeadDim, w.KVHeads, 1)
	v := ctx.Input().Empty(ml.DTypeF32, w.HeadDim, w.KVHeads, 1)
	a := q.(ml.ScaledDotProductAttention).ScaledDotProductAttention(ctx, k, v, nil, nil, nil, 1/math.Sqrt(float64(w.HeadDim)), true)
	return supportsOp(s.dev.dev, a)
}

// copier moves KV between a device and memory on a stream of its own, so that it does not
// wait for what is computed meanwhile. Stages on the CPU have none.
type copier struct{ backend unsafe.Pointer }

func newCopier(d device) (copier, error) {
	if !d.onGPU() {
		return copier{}, nil
	}
	b := newStream(d.dev)
	if b == nil {
		return copier{}, fmt.Errorf("%s: no second stream could be made", d.about)
	}
	return copier{b}, nil
}

// get starts to copy t's bytes from off on to dst, which must stay where it is until wait.
func (c copier) get(t ml.Tensor, off int, dst []byte, pins *runtime.Pinner) {
	if c.backend == nil {
		getTensor(t, off, dst)
		return
	}
	if len(dst) > 0 {
		pins.Pin(&dst[0])
		getAsync(c.backend, t, off, dst)
	}
}

// set is the inverse of get.
func (c copier) set(t ml.Tensor, off int, src []byte, pins *runtime.Pinner) {
	if c.backend == nil {
		setTensor(t, off, src)
		return
	}
	if len(src) > 0 {
		pins.Pin(&src[0])
		setAsync(c.backend, t, off, src)
	}
}

// wait returns when all that was begun is done.
func (c copier) wait(pins *runtime.Pinner) {
	if c.backend != nil {
		synchronize(c.backend)
	}
	pins.Unpin()
}

func (c copier) free() {
	if c.backend != nil {
		freeStream(c.backend)
	}
}
