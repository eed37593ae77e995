#!/bin/sh
# Builds fakegpu.cpp as the backend library of CUDA, for tests:
#
#   engine/testdata/fakegpu.sh OUT-DIR [GGML-SOURCES]
#
# The sources are ml/backend/ggml/ggml of ollama's Go module (default: in Go's module cache).
set -eu
src=${2:-$(go list -m -f '{{.Dir}}' github.com/ollama/ollama)/ml/backend/ggml/ggml}
g++ -std=c++17 -O1 -fPIC -shared -fvisibility=hidden "-I$src/include" "-I$src/src" -o "$1/libggml-cuda.so" "$(dirname "$0")/fakegpu.cpp"
