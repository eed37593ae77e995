//go:build !cgo

package main

// builtWithEngine reports whether ggml is linked in.
const builtWithEngine = false
