//go:build !cgo

package engine

import "os"

// Stage needs cgo; in this build Open always fails.
type Stage struct{ info Info }

// Open returns ErrUnsupported.
func Open(Spec, func(done, total int64)) (*Stage, error) { return nil, ErrUnsupported }

// Info describes the stage.
func (s *Stage) Info() Info { return s.info }

// Forward returns ErrUnsupported.
func (s *Stage) Forward(Batch) (Result, error) { return Result{}, ErrUnsupported }

// Read returns ErrUnsupported.
func (s *Stage) Read(_, _ int, _ []byte) error { return ErrUnsupported }

// Write returns ErrUnsupported.
func (s *Stage) Write(_, _ int, _ []byte) error { return ErrUnsupported }

// Copy returns ErrUnsupported.
func (s *Stage) Copy(_, _, _ int) error { return ErrUnsupported }

// Close does nothing.
func (s *Stage) Close() {}

func plainAbort() {}

func abort() { os.Exit(134) }
