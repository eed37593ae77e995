#!/bin/sh
# Builds libggml-cuda.so, with which engines compute on NVIDIA's GPUs, from the ggml sources of
# the Go module that kevlard is built with, for one kind of chip:
#
#   scripts/build-cuda-backend.sh [--arch 90] [--sources DIR] [--jobs N] OUT-DIR
#
# --arch is the compute capability without the dot (90: H100 and H200; default: that of the
# first GPU here), --sources is ml/backend/ggml/ggml of the module (default: from Go's module
# cache). It needs CUDA's nvcc and g++ and no network. Everything else of ggml is in kevlard
# itself: the library takes it from there, so both must be of the same sources.
# Put OUT-DIR into [engine] backend_dir. CUDA's libraries are found where nvcc found them.
#
# The flags are those of ggml's own build but for CUDA graphs, which are left out: each batch
# here is another graph. Not run with CUDA's nvcc: none was at hand. A test runs it with a
# stand-in, and compares the list of files with ggml's (engine.TestCUDABuild).
set -eu
arch='' sources='' jobs=$(nproc)
while [ $# -gt 1 ]; do
	case $1 in
	--arch) arch=$2; shift 2 ;;
	--sources) sources=$2; shift 2 ;;
	--jobs) jobs=$2; shift 2 ;;
	*) echo "build-cuda-backend: $1: want --arch, --sources or --jobs, and a directory at the end" >&2; exit 2 ;;
	esac
done
out=${1:?build-cuda-backend: want a directory for libggml-cuda.so}
cd "$(dirname "$0")/.."
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
[ -x "$nvcc" ] || { echo "build-cuda-backend: there is no nvcc in PATH or /usr/local/cuda/bin: install the CUDA toolkit" >&2; exit 1; }
if [ -z "$sources" ]; then
	sources=$(go list -m -f '{{.Dir}}' github.com/ollama/ollama)/ml/backend/ggml/ggml
fi
[ -f "$sources/src/ggml-cuda/ggml-cuda.cu" ] || { echo "build-cuda-backend: $sources has no src/ggml-cuda: name the module's ml/backend/ggml/ggml with --sources" >&2; exit 1; }
if [ -z "$arch" ]; then
	arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d ' .')
fi
case $arch in '' | *[!0-9a]*) echo "build-cuda-backend: --arch '$arch': want a number such as 90" >&2; exit 2 ;; esac
cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
mkdir -p "$out"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
list=$(find "$sources/src/ggml-cuda" -name '*.cu' | sort)
# Of the attention kernels for KV of two types, those that ggml's own build has too.
list=$(echo "$list" | awk '!/fattn-vec-instance-/ || /-(f16-f16|q4_0-q4_0|q8_0-q8_0)\.cu$/')
echo "build-cuda-backend: $(echo "$list" | wc -l) files for sm_$arch, $jobs at a time"
echo "$list" | xargs -P "$jobs" -I {} sh -c '
	o=$5/$(echo "$1" | cksum | cut -d" " -f1).o
	"$2" -O3 -std=c++17 -use_fast_math -extended-lambda --forward-unknown-to-host-compiler -fPIC -DNDEBUG \
		-DGGML_BACKEND_DL -DGGML_BACKEND_SHARED -DGGML_BACKEND_BUILD -DGGML_CUDA_PEER_MAX_BATCH_SIZE=128 \
		-gencode "arch=compute_$3,code=sm_$3" -I"$4/include" -I"$4/src" -I"$4/src/ggml-cuda" -c "$1" -o "$o" || { echo "build-cuda-backend: $1 failed" >&2; exit 255; }
' sh {} "$nvcc" "$arch" "$sources" "$objects"
# mem_nvml.cpp asks for free memory; kevlard has it. libcuda comes with the driver, which a
# machine that only builds lacks: the toolkit has a stub of it to link with.
"$nvcc" -shared -cudart shared -o "$out/libggml-cuda.so.new" "$objects"/*.o -L"$cuda/lib64" -L"$cuda/lib64/stubs" -lcublas -lcublasLt -lcuda -Xlinker -rpath -Xlinker "$cuda/lib64"
mv "$out/libggml-cuda.so.new" "$out/libggml-cuda.so"
echo "build-cuda-backend: $out/libggml-cuda.so: set [engine] backend_dir to $(cd "$out" && pwd)"
