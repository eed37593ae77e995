//go:build cgo

package engine

// The engine carries none of ggml's headers: these are all the functions it calls
// besides ollama's ml package, and struct ggml_tensor stays opaque.

/*
#cgo linux LDFLAGS: -Wl,--wrap=llamafile_sgemm
#include <stdint.h>
#include <stddef.h>
#include <stdlib.h>
#include <signal.h>

extern void ggml_backend_tensor_set(void *tensor, const void *data, size_t offset, size_t size);
extern void ggml_backend_tensor_get(const void *tensor, void *data, size_t offset, size_t size);
extern size_t ggml_nbytes(const void *tensor);

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

// buildISA lists the instruction sets that this build may use.
func buildISA() string { return C.GoString(C.kevlard_isa()) }

// plainAbort makes abort, as of a failed GGML_ASSERT, a plain SIGABRT.
func plainAbort() { C.kevlard_plain_abort() }

// abort ends the process as ggml does.
func abort() { C.abort() }
