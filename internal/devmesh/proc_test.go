package devmesh

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary play other processes: the parent of a child that
// must die with it, or kevlard itself.
func TestMain(m *testing.M) {
	if os.Getenv("DEVMESH_TEST_PARENT") != "" {
		s := newSpawner()
		child := exec.Command("sleep", "60")
		if err := s.start(child); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(child.Process.Pid)
		select {}
	}
	if os.Getenv(standIn) != "" {
		if err := play(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestChildrenDieWithTheirParent(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(exe)
	parent.Env = append(os.Environ(), "DEVMESH_TEST_PARENT=1")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if parentPID, err := parentOf(child); err != nil || parentPID != parent.Process.Pid {
		t.Fatalf("child %d has parent %d (%v), want %d", child, parentPID, err, parent.Process.Pid)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()                           // killed
	deadline := time.Now().Add(5 * time.Second) // the kernel needs no time; the poll ends as soon as it did
	for syscall.Kill(child, 0) == nil && !zombie(child) {
		if time.Now().After(deadline) {
			t.Fatalf("child %d outlived its parent", child)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// zombie reports whether a process has ended and only waits to be reaped.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestUsageOfThisProcess(t *testing.T) {
	u, err := UsageOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if u.RSS < 1<<20 || u.RSS > 1<<34 || u.CPU < 0 {
		t.Errorf("usage %+v", u)
	}
	if _, err := UsageOf(-1); err == nil {
		t.Error("no error for a process that does not exist")
	}
}
