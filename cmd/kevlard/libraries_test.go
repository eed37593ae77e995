package main

import (
	"debug/elf"
	"os"
	"runtime"
	"strings"
	"testing"
)

// TestLibraries: the binary must start on hosts without RDMA, so libibverbs is opened
// when it is needed and not linked with. This test's binary links with what kevlard
// does.
func TestLibraries(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("an ELF binary is looked at")
	}
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	libraries, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := f.ImportedSymbols()
	if err != nil && len(libraries) > 0 {
		t.Fatal(err)
	}
	for _, l := range libraries {
		if strings.Contains(l, "verbs") || strings.Contains(l, "rdma") || strings.Contains(l, "nvidia") || strings.Contains(l, "cuda") {
			t.Errorf("linked with %s", l)
		}
	}
	for _, s := range symbols {
		if strings.HasPrefix(s.Name, "ibv_") {
			t.Errorf("%s is to be found by the linker", s.Name)
		}
	}
}
