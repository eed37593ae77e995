// Package gpu reads the GPUs of this host: NVIDIA's through their driver's library
// (NVML, opened at run time: a host without it has none), AMD's through sysfs, and what
// the NVIDIA driver writes to the kernel log. No GPU is no error. What was read is judged
// by package health.
//
// With CGO_ENABLED=0 there is no NVML: NVIDIA's GPUs are not seen then.
//
// # Recordings
//
// With KEVLARD_GPU_RECORDING=FILE in the daemon's environment nothing is read of this host:
// each line of FILE, also one that is appended later, is one reading, as the JSON of a
// health.Reading; its kernel lines stand for the kernel log. The last one counts until the
// next. Every device of it counts as one that stages are on. This is for rehearsals of how a ring takes a failing GPU, without one. It is no
// configuration key, so that no file can hide a host's real GPUs by mistake, and the
// daemon warns at its start.
package gpu
