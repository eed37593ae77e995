package daemon_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/mesh"
)

// TestGarbageFromAPeer lets a holder of the secret send what is no message: it is
// counted, becomes one event, and nothing else happens.
func TestGarbageFromAPeer(t *testing.T) {
	r := newRing(t)
	m := r.start("solo", span(0, 8))
	r.ready()
	key, err := mesh.LoadOrCreateKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	up := make(chan mesh.Peer, 1)
	bad, err := mesh.New(mesh.Config{
		Key: key, Self: "bad", Boot: "b", Ring: m.cfg.Ring, Secret: m.cfg.Secret, Listen: r.port(),
		Handler: mesh.Handler{Up: func(p mesh.Peer) { up <- p }},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- bad.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	bad.SetPeers([]mesh.Address{{Node: "solo", ID: m.Members().Nodes[0].ID, Addr: m.MeshAddr()}})
	<-up
	for _, b := range [][]byte{{}, {0xff}, {1, 0xa1}, bytes.Repeat([]byte{7}, 10_000)} {
		if err := bad.Control("solo", b); err != nil {
			t.Fatal(err)
		}
		if err := bad.Data("solo", b, b); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := bad.Call(t.Context(), "solo", "reboot", nil); err == nil || !strings.Contains(err.Error(), "does not know the method") {
		t.Errorf("an unknown method: %v", err)
	}
	if _, err := bad.Call(t.Context(), "solo", "drain", []byte("{")); err == nil {
		t.Error("a malformed drain call was taken")
	}
	r.until("all are counted", func() bool { return scrape(t, m)["kevlard_bad_messages_total"] == 8 })
	isBad := func(e report.Event) bool { return e.Type == "bad-message" }
	if n := len(slices.DeleteFunc(m.Events(time.Time{}), func(e report.Event) bool { return !isBad(e) })); n != 1 {
		t.Errorf("%d events of bad messages, want 1", n)
	}
	j := newJob(1, 20)
	exact(t, j, generate(t.Context(), m, j, nil))
}

// TestSystemd plays systemd's side of sd_notify.
func TestSystemd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "30000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	expect := func(want string, skip ...string) {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		for {
			n, err := conn.Read(b)
			if err != nil {
				t.Fatalf("waiting for %s: %v", want, err)
			}
			if string(b[:n]) == want {
				return
			}
			if !slices.Contains(skip, string(b[:n])) {
				t.Fatalf("got %q, want %s", b[:n], want)
			}
		}
	}
	r := newRing(t)
	m := r.start("solo")
	expect("READY=1")
	expect("WATCHDOG=1")
	expect("WATCHDOG=1")
	r.kill(m)
	expect("STOPPING=1", "WATCHDOG=1")
}
