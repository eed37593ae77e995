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
		if err := s.start(child, 0); err != nil {
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

func TestMachineTime(t *testing.T) {
	m, err := machineTime("cpu  100 20 30 800 40 1 2 7 50 60\ncpu0 1 2 3\n")
	if want := (Machine{Busy: 160, Total: 1000}); err != nil || m != want {
		t.Errorf("got %+v, %v, want %+v", m, err, want)
	}
	if got := m.BusySince(Machine{Busy: 60, Total: 800}); got != 50 {
		t.Errorf("busy %v %%, want 50", got)
	}
	if got := m.BusySince(m); got != 0 {
		t.Errorf("busy %v %% in no time", got)
	}
	for _, bad := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3 4 5 6 7 x"} {
		if m, err := machineTime(bad); err == nil {
			t.Errorf("%q gave %+v", bad, m)
		}
	}
	if m, err := MachineTime(); err != nil || m.Total == 0 {
		t.Errorf("of this machine: %+v, %v", m, err)
	}
}

// TestAlternate slows a process down, and leaves it running.
func TestAlternate(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	throttle := &Throttle{stop: make(chan struct{}), ended: make(chan error, 1)}
	go func() {
		throttle.ended <- alternate(throttle.stop, []*os.Process{cmd.Process}, 0.5, 20*time.Millisecond)
	}()
	stopped, running := 0, 0
	for deadline := time.Now().Add(20 * time.Second); stopped < 3 || running < 3; {
		if time.Now().After(deadline) {
			t.Fatalf("seen stopped %d times, running %d times", stopped, running)
		}
		if state := stateOf(t, cmd.Process.Pid); state == "T" {
			stopped++
		} else {
			running++
		}
		time.Sleep(time.Millisecond)
	}
	if err := throttle.Stop(); err != nil {
		t.Fatal(err)
	}
	if state := stateOf(t, cmd.Process.Pid); state == "T" {
		t.Error("it stands still after the end")
	}
}

func stateOf(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.Fields(rest)[0]
}
