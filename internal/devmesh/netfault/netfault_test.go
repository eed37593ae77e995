package netfault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	talkerKey = "NETFAULT_TEST_TALKER"
	group     = 54321
	victim    = "127.0.0.77"
)

// TestMain lets the test binary play the process inside, and a daemon there.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(talkerKey) != "":
		if err := echo(os.Getenv(talkerKey)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case Inside():
		if err := inside(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

// TestCut runs inside in a namespace of its own.
func TestCut(t *testing.T) {
	if err := Available(); err != nil {
		t.Skip(err)
	}
	cmd, err := Command(t.Context(), os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestNothingIsDoneOutside wants the machine's own network left alone.
func TestNothingIsDoneOutside(t *testing.T) {
	if err := Enter(); err == nil {
		t.Error("the machine's own namespace was entered")
	}
	if _, err := Build(t.Context()); err == nil {
		t.Error("a wall was built in the machine's own network")
	}
	own, err := current()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(outsideKey, own)
	if err := Enter(); err == nil || !strings.Contains(err.Error(), "in that of its parent") {
		t.Errorf("a namespace that is the parent's: %v", err)
	}
}

// inside starts a victim that echoes lines, over a connection that it accepted and one
// that it dialled, and cuts it off and lets it back.
func inside(ctx context.Context) error {
	if err := Enter(); err != nil {
		return err
	}
	wall, err := Build(ctx)
	if err != nil {
		return err
	}
	home, err := net.Listen("tcp", "127.0.0.5:0")
	if err != nil {
		return err
	}
	defer home.Close()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), talkerKey+"="+home.Addr().String())
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Gid: group}, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	fromVictim, err := home.Accept()
	if err != nil {
		return err
	}
	toVictim, err := net.Dial("tcp", victim+":7000")
	if err != nil {
		return err
	}
	both := []net.Conn{fromVictim, toVictim}
	for i, c := range both {
		if err := answers(c, 20*time.Second); err != nil {
			return fmt.Errorf("connection %d before the cut: %w", i, err)
		}
	}
	if err := wall.Cut(ctx, victim, group); err != nil {
		return err
	}
	for i, c := range both {
		switch err := answers(c, 500*time.Millisecond); {
		case err == nil:
			return fmt.Errorf("connection %d answers across the cut", i)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("connection %d was told of the cut: %w", i, err)
		}
	}
	if _, err := net.DialTimeout("tcp", victim+":7000", 300*time.Millisecond); err == nil {
		return errors.New("a new connection came about across the cut")
	}
	if err := wall.Mend(ctx, victim, group); err != nil {
		return err
	}
	for i, c := range both { // TCP sends again what vanished
		if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			return fmt.Errorf("connection %d after the mending: %w", i, err)
		}
	}
	return nil
}

// answers sends a byte and waits for its echo.
func answers(c net.Conn, within time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	if _, err := c.Write([]byte{1}); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

// echo is the victim.
func echo(home string) error {
	l, err := net.Listen("tcp", victim+":7000")
	if err != nil {
		return err
	}
	dialled, err := net.Dial("tcp", home)
	if err != nil {
		return err
	}
	go func() { _, _ = io.Copy(dialled, dialled) }() // killed with the process
	accepted, err := l.Accept()
	if err != nil {
		return err
	}
	_, err = io.Copy(accepted, accepted)
	return err
}
