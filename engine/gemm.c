// ggml multiplies two rows and more by llamafile's GEMM where that exists for the
// types, and one row by its own dot products. What a row computes must not depend on
// its company, so the GEMM may run only where it adds in the order of the dot product:
// on AVX2 that is so for blocks of 8 bits (one fused multiply-add of eight lanes for
// each block of 32, then the same sum of lanes), and not for floats.
//
// The linker sends ggml's calls here (--wrap, in ggml.go).

#include <stdbool.h>
#include <stdint.h>

enum { type_q8_0 = 8 }; // ggml.h

// With fewer rows the dot products are faster where the weights exceed the caches: the
// GEMM reads four rows of weights at a time, once for every two rows of input.
enum { least_rows = 8 };

struct ggml_compute_params;

#define ARGS                                                                           \
	const struct ggml_compute_params *params, int64_t m, int64_t n, int64_t k,         \
		const void *a, int64_t lda, const void *b, int64_t ldb, void *c, int64_t ldc,  \
		int atype, int btype, int ctype

bool __real_llamafile_sgemm(ARGS);

bool __wrap_llamafile_sgemm(ARGS) {
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
	if (n >= least_rows && atype == type_q8_0 && btype == type_q8_0)
		return __real_llamafile_sgemm(params, m, n, k, a, lda, b, ldb, c, ldc, atype, btype, ctype);
#endif
	return false;
}
