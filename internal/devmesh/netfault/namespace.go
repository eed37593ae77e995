package netfault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// outsideKey is the environment variable with the network namespace that the parent
// was in.
const outsideKey = "KEVLARD_OUTSIDE_NETNS"

// stopGrace is how long the program inside may take to end after SIGTERM.
const stopGrace = 30 * time.Second

// ErrNotPermitted says that only root can do this.
var ErrNotPermitted = errors.New("only root may make a network namespace and drop packets in it: run it as root")

// Available reports what is missing for Command and Wall on this machine: the user's
// rights or a program.
func Available() error {
	if os.Geteuid() != 0 {
		return ErrNotPermitted
	}
	if _, err := exec.LookPath(restore); err != nil {
		return fmt.Errorf("%w: install iptables (Debian: apt-get install iptables; RHEL: dnf install iptables-nft)", err)
	}
	return nil
}

// Command returns the command that runs exe in a network namespace of its own, where
// Inside is true. The end of ctx stops it with SIGTERM, and it does not outlive us.
func Command(ctx context.Context, exe string, args ...string) (*exec.Cmd, error) {
	outside, err := current()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Env = append(os.Environ(), outsideKey+"="+outside)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	return cmd, nil
}

// Inside reports whether this process was started by Command.
func Inside() bool { return os.Getenv(outsideKey) != "" }

// Enter makes the namespace that Command made usable. It fails unless the namespace
// is another one than the parent's.
func Enter() error {
	now, err := current()
	if err != nil {
		return err
	}
	if outside := os.Getenv(outsideKey); outside == "" || outside == now {
		return fmt.Errorf("enter a network namespace: this process is in that of its parent, %s (%s is %q)", now, outsideKey, outside)
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bring the loopback up: %w", err)
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err == nil {
		err = unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, lo)
	}
	if err == nil {
		lo.SetUint16(lo.Uint16() | unix.IFF_UP)
		err = unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
	}
	if err != nil {
		return fmt.Errorf("bring the loopback up: %w", err)
	}
	return nil
}

// current names the network namespace of this process.
func current() (string, error) {
	name, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return "", fmt.Errorf("find the network namespace: %w", err)
	}
	return name, nil
}
