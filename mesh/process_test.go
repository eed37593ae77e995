package mesh

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/internal/loopback"
)

// childEnv makes the test binary run one mesh node in place of the tests.
const childEnv = "MESH_TEST_CHILD"

// childConfig is what childEnv holds, as JSON.
type childConfig struct {
	Dir, Listen, Boot string
	Parent            Address
}

func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		if err := runChild(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// runChild answers each data frame by a control message "got <header>".
func runChild(spec string) error {
	var c childConfig
	if err := json.Unmarshal([]byte(spec), &c); err != nil {
		return err
	}
	key, err := LoadOrCreateKey(c.Dir)
	if err != nil {
		return err
	}
	var m *Mesh
	m, err = New(Config{
		Key: key, Self: "child", Boot: kevlard.BootID(c.Boot), Ring: "test",
		Secret: []byte("0123456789abcdef0123456789abcdef"), Listen: c.Listen,
		Handler: Handler{Data: func(from Peer, head, _ []byte) {
			_ = m.Control(from.Node, append([]byte("got "), head...)) // the parent counts what comes
		}},
	})
	if err != nil {
		return err
	}
	m.SetPeers([]Address{c.Parent})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return m.Run(ctx)
}

func startChild(t *testing.T, c childConfig) *exec.Cmd {
	t.Helper()
	spec, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(spec))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended already
		_ = cmd.Wait()
	})
	return cmd
}

// K15: a peer process is killed and started again at its address within a second,
// with frames queued for it and a call under way. No crash; the new boot is seen,
// Down before Up; no frame of the old boot reaches the new one.
func TestKillAndRestartProcess(t *testing.T) {
	a := start(t, testConfig(t, "parent"))
	c := childConfig{Dir: t.TempDir(), Listen: loopback.IP(t) + ":7947", Boot: "boot-1", Parent: a.at()}
	key, err := LoadOrCreateKey(c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	to := Address{Node: "child", Boot: "boot-1", Addr: c.Listen}
	to.ID = newStranger(t, Config{Key: key, Secret: make([]byte, minSecret)}).id.String()
	child := startChild(t, c)
	a.SetPeers([]Address{to})
	a.next(t, "up")
	if err := a.Data("child", []byte("first")); err != nil {
		t.Fatal(err)
	}
	// This also shows that the child's own link is up.
	until(t, func() bool { return a.Data("child", []byte("probe")) != nil || len(a.events) > 0 })
	if e := a.next(t, "control", "down"); e.peer.Boot != "boot-1" {
		t.Fatalf("got %+v", e)
	}

	// Stopped, the child leaves frames in its socket, in our queue and in between.
	if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, maxDataBody)
	for i := range (streamWindow + dataBytes/2) / maxDataBody {
		if err := a.Data("child", fmt.Appendf(nil, "old-%d", i), body); err != nil {
			t.Fatal(err)
		}
	}
	called := make(chan error, 1)
	go func() {
		_, err := a.Call(context.Background(), "child", "m", nil)
		called <- err
	}()
	killed := time.Now()
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // "signal: killed"
	c.Boot = "boot-2"
	startChild(t, c)
	if d := time.Since(killed); d > time.Second {
		t.Logf("restart took %v, not within the second that the case asks for", d)
	}
	for _, want := range []string{"down boot-1", "up boot-2"} {
		e := a.next(t, "up", "down")
		if got := e.what + " " + string(e.peer.Boot); got != want {
			t.Fatalf("got %s (%v), want %s", got, e.err, want)
		}
		if e.what == "down" && silence(e.err) {
			t.Errorf("the kill was seen by silence: %v", e.err)
		}
	}
	if err := receiveIn(t, called); err == nil {
		t.Error("the call to the killed process succeeded")
	}
	t.Logf("connected again %v after the kill", time.Since(killed))

	// Answers show what the new boot received. It may not have dialled us yet, so
	// keep asking; nothing it was sent may be old.
	limit, tick := time.After(patience), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for answers := 0; answers < 3; {
		select {
		case <-tick.C:
			if err := a.Data("child", []byte("new")); err != nil {
				t.Fatal(err)
			}
		case e := <-a.events:
			if e.what == "control" && e.peer.Boot == "boot-2" {
				if strings.HasPrefix(string(e.body), "got old") {
					t.Fatalf("a frame for the old boot reached the new one: %q", e.body)
				}
				answers++
			}
		case <-limit:
			t.Fatal("no answers from the new boot")
		}
	}
}
