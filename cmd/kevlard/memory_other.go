//go:build !linux

package main

// hostMemory is unknown here: [engine] memory_bytes must say what stages may use.
func hostMemory() int64 { return 0 }
