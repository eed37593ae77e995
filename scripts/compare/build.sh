#!/bin/sh
# Builds ollama from its Go module into DIR, as its Dockerfile does: the Go program
# with Go's default C flags, and ggml's CPU libraries with CMake. On Debian:
#   apt-get install cmake g++ nlohmann-json3-dev libstb-dev
# (the two header packages stand for what ollama vendors; a module archive has no vendored code).
# DIR/haswell has the AVX2 library only, as kevlard is built; DIR/all what ollama's users get on x86-64.
set -eu
dir=$1
here=$(cd "$(dirname "$0")" && pwd)
module=github.com/ollama/ollama@v0.17.4
unset CGO_CFLAGS CGO_CXXFLAGS
mkdir -p "$dir/bin"
dir=$(cd "$dir" && pwd)
GOBIN=$dir/bin CGO_CPPFLAGS=-I$here/include go install "$module"
cmake -S "$(go list -m -f '{{.Dir}}' github.com/ollama/ollama)" -B "$dir/cmake" -DCMAKE_BUILD_TYPE=Release >"$dir/cmake.log"
variants="haswell skylakex icelake alderlake sandybridge sse42"
for v in $variants; do targets="${targets:-} -t ggml-cpu-$v"; done
# shellcheck disable=SC2086 # a list of words
cmake --build "$dir/cmake" --parallel "$(nproc)" -t ggml-base $targets >>"$dir/cmake.log"
for set in haswell all; do
	mkdir -p "$dir/$set/bin" "$dir/$set/lib/ollama"
	cp "$dir/bin/ollama" "$dir/$set/bin/"
	cp -P "$dir"/cmake/lib/ollama/libggml-base.so* "$dir/$set/lib/ollama/"
done
cp "$dir/cmake/lib/ollama/libggml-cpu-haswell.so" "$dir/haswell/lib/ollama/"
cp "$dir"/cmake/lib/ollama/libggml-cpu-*.so "$dir/all/lib/ollama/"
