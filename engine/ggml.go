//go:build cgo

package engine

// The engine carries none of ggml's headers: these are all the functions it calls
// besides ollama's ml package, and struct ggml_tensor stays opaque.

/*
// A backend library that is loaded at run time uses the ggml of this program, so that the
// two can't differ: what it lacks shows when it is loaded.
#cgo linux LDFLAGS: -Wl,--wrap=llamafile_sgemm -Wl,--export-dynamic -ldl
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>

extern void ggml_backend_tensor_set(void *tensor, const void *data, size_t offset, size_t size);
extern void ggml_backend_tensor_get(const void *tensor, void *data, size_t offset, size_t size);
extern size_t ggml_nbytes(const void *tensor);
extern void ggml_backend_tensor_set_async(void *backend, void *tensor, const void *data, size_t offset, size_t size);
extern void ggml_backend_tensor_get_async(void *backend, const void *tensor, void *data, size_t offset, size_t size);
extern void ggml_backend_synchronize(void *backend);
extern void ggml_backend_free(void *backend);
extern void *ggml_backend_load(const char *path);
extern void *ggml_backend_dev_by_name(const char *name);
extern void *ggml_backend_dev_init(void *dev, const char *params);
extern bool ggml_backend_dev_supports_op(void *dev, const void *op);
extern void ggml_backend_sched_synchronize(void *sched);
extern void ggml_backend_sched_set_batch_size(void *sched, int rows);
extern bool ggml_backend_sched_alloc_graph(void *sched, void *graph);
extern void ggml_backend_sched_reset(void *sched);
extern void *ggml_backend_sched_get_tensor_backend(void *sched, void *node);
extern void *ggml_backend_get_device(void *backend);
extern int ggml_graph_n_nodes(void *graph);
extern void *ggml_graph_node(void *graph, int i);
extern const char *ggml_op_desc(const void *node);

// kevlard_stray returns the first node of a placed graph that is computed elsewhere than on
// dev, NULL if there is none; but that is not a node, and what only names a place in
// another tensor is computed nowhere.
static void *kevlard_stray(void *sched, void *graph, void *dev, const void *but) {
	static const char *const names[] = {"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"};
	for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
		void *node = ggml_graph_node(graph, i);
		bool computed = node != but;
		for (size_t n = 0; n < sizeof names / sizeof *names; n++)
			computed = computed && strcmp(ggml_op_desc(node), names[n]) != 0;
		if (computed && ggml_backend_get_device(ggml_backend_sched_get_tensor_backend(sched, node)) != dev)
			return node;
	}
	return NULL;
}

// kevlard_dlopen says why a library can't be loaded, which ggml does not.
static const char *kevlard_dlopen(const char *path) {
	return dlopen(path, RTLD_NOW | RTLD_LOCAL) == NULL ? dlerror() : NULL;
}

// kevlard_isa names what the compiler was allowed to use, since that decides the
// order of additions in ggml's kernels.
static const char *kevlard_isa(void) {
	return ""
#ifdef __SSE4_2__
	" sse4.2"
#endif
#ifdef __AVX2__
	" avx2"
#endif
#ifdef __FMA__
	" fma"
#endif
#ifdef __F16C__
	" f16c"
#endif
#ifdef __AVX512F__
	" avx512f"
#endif
#ifdef __AVX512VNNI__
	" avx512vnni"
#endif
#ifdef __AVX512BF16__
	" avx512bf16"
#endif
#ifdef __ARM_NEON
	" neon"
#endif
#ifdef __ARM_FEATURE_DOTPROD
	" dotprod"
#endif
#ifdef __ARM_FEATURE_MATMUL_INT8
	" i8mm"
#endif
#ifdef __ARM_FEATURE_SVE
	" sve"
#endif
	;
}

// kevlard_plain_abort lets abort() end the process by SIGABRT, where the Go runtime
// would print all goroutines and exit with code 2.
static void kevlard_plain_abort(void) { signal(SIGABRT, SIG_DFL); }
*/
import "C"

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/ollama/ollama/ml"
)

// raw returns the ggml tensor inside an ml.Tensor, which the library keeps private.
func raw(t ml.Tensor) unsafe.Pointer {
	return reflect.ValueOf(t).Elem().FieldByName("t").UnsafePointer()
}

// tensorBytes is the size of t's data.
func tensorBytes(t ml.Tensor) int64 { return int64(C.ggml_nbytes(raw(t))) }

// setTensor copies src to t's bytes from off; the caller keeps it inside t, or
// ggml aborts.
func setTensor(t ml.Tensor, off int, src []byte) {
	if len(src) > 0 {
		C.ggml_backend_tensor_set(raw(t), unsafe.Pointer(&src[0]), C.size_t(off), C.size_t(len(src)))
	}
}

// getTensor copies t's bytes from off on to dst; the caller keeps it inside t.
func getTensor(t ml.Tensor, off int, dst []byte) {
	if len(dst) > 0 {
		C.ggml_backend_tensor_get(raw(t), unsafe.Pointer(&dst[0]), C.size_t(off), C.size_t(len(dst)))
	}
}

// loadBackend loads a backend library; its devices are ggml's from then on.
func loadBackend(path string) error {
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	if why := C.kevlard_dlopen(p); why != nil {
		return fmt.Errorf("load backend library: %s", C.GoString(why))
	}
	if C.ggml_backend_load(p) == nil {
		return fmt.Errorf("load backend library %s: it is no backend for this build of ggml (%s): build it from the same sources", path, library)
	}
	return nil
}

// deviceByName finds a device, nil if ggml has none of that name.
func deviceByName(name string) unsafe.Pointer {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	return C.ggml_backend_dev_by_name(n)
}

func supportsOp(dev unsafe.Pointer, op ml.Tensor) bool {
	return bool(C.ggml_backend_dev_supports_op(dev, raw(op)))
}

func newStream(dev unsafe.Pointer) unsafe.Pointer { return C.ggml_backend_dev_init(dev, nil) }

func freeStream(backend unsafe.Pointer) { C.ggml_backend_free(backend) }

func synchronize(backend unsafe.Pointer) { C.ggml_backend_synchronize(backend) }

func getAsync(backend unsafe.Pointer, t ml.Tensor, off int, dst []byte) {
	C.ggml_backend_tensor_get_async(backend, raw(t), unsafe.Pointer(&dst[0]), C.size_t(off), C.size_t(len(dst)))
}

func setAsync(backend unsafe.Pointer, t ml.Tensor, off int, src []byte) {
	C.ggml_backend_tensor_set_async(backend, raw(t), unsafe.Pointer(&src[0]), C.size_t(off), C.size_t(len(src)))
}

// sched is the library's scheduler of a backend, which it keeps private.
func sched(b ml.Backend) unsafe.Pointer {
	return reflect.ValueOf(b).Elem().FieldByName("sched").UnsafePointer()
}

// finishCompute waits until all that was computed is in memory: the library waits only
// where results are asked for, and KV rows are read on another stream.
func finishCompute(b ml.Backend) { C.ggml_backend_sched_synchronize(sched(b)) }

// place has the library choose a device for each operation of ctx's graph, for a batch of
// this many rows, and allocates what it needs beside weights and KV. It returns what the
// first operation is called that is not computed on dev, "" if all are; looked, which may
// be nil, may be computed anywhere. Unless all are, unplace must follow, else Compute or
// unplace.
func place(b ml.Backend, ctx ml.Context, rows int, dev unsafe.Pointer, looked ml.Tensor) (stray string, err error) {
	s, graph := sched(b), reflect.ValueOf(ctx).Elem().FieldByName("graph").UnsafePointer()
	var but unsafe.Pointer
	if looked != nil {
		but = raw(looked)
	}
	C.ggml_backend_sched_set_batch_size(s, C.int(rows))
	if !C.ggml_backend_sched_alloc_graph(s, graph) {
		return "", fmt.Errorf("%w: a batch of %d rows: grant fewer cells or layers", ErrNoMemory, rows)
	}
	if node := C.kevlard_stray(s, graph, dev, but); node != nil {
		stray = C.GoString(C.ggml_op_desc(node))
	}
	return stray, nil
}

// unplace undoes place.
func unplace(b ml.Backend) { C.ggml_backend_sched_reset(sched(b)) }

// buildISA lists the instruction sets that this build may use.
func buildISA() string { return C.GoString(C.kevlard_isa()) }

// plainAbort makes abort, as of a failed GGML_ASSERT, a plain SIGABRT.
func plainAbort() { C.kevlard_plain_abort() }

// abort ends the process as ggml does.
func abort() { C.abort() }
