package main

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestProcessLimit compares what procfs says of this process with the system call's word.
func TestProcessLimit(t *testing.T) {
	for _, resource := range []int{limitMemlock, limitFiles} {
		var want unix.Rlimit
		if err := unix.Getrlimit(resource, &want); err != nil {
			t.Fatal(err)
		}
		for _, pid := range []int{0, os.Getpid()} {
			if got, err := processLimit(pid, resource); err != nil || got != want.Cur {
				t.Errorf("limit %d of process %d: %d, %v, want %d", resource, pid, got, err, want.Cur)
			}
		}
	}
	if _, err := processLimit(0, -1); err == nil {
		t.Error("an unknown resource has a limit")
	}
}

func TestSoftLimit(t *testing.T) {
	const text = `Limit                     Soft Limit           Hard Limit           Units
Max open files            1024                 524288               files
Max locked memory         65536                unlimited            bytes
`
	if n, err := softLimit(text, limitMemlock); err != nil || n != 65536 {
		t.Errorf("locked memory %d, %v", n, err)
	}
	if n, err := softLimit("Max locked memory         unlimited  unlimited  bytes\n", limitMemlock); err != nil || n != limitInfinity {
		t.Errorf("no limit: %d, %v", n, err)
	}
	for _, bad := range []string{"", "Max open files\n", "Max open files many 1 files\n"} {
		if n, err := softLimit(bad, limitFiles); err == nil {
			t.Errorf("%q: %d", bad, n)
		}
	}
}
