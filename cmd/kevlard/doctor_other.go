//go:build !linux

package main

import (
	"errors"
	"math"
	"os"
	"time"
)

// errNotHere says that a probe is written for Linux only.
var errNotHere = errors.New("not known on this operating system")

const (
	limitMemlock  = 0
	limitFiles    = 1
	limitInfinity = math.MaxUint64
)

func processLimit(int, int) (uint64, error)    { return 0, errNotHere }
func clockError() (time.Duration, bool, error) { return 0, false, errNotHere }
func diskSpace(string) (disk, error)           { return disk{}, errNotHere }
func ownerOf(os.FileInfo) (uint32, error)      { return 0, errNotHere }
func processGroups(int) (groupLimits, error)   { return groupLimits{}, errNotHere }
