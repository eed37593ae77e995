package membership

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
)

func newBridge() (*bridge, *logBuffer) {
	buf := &logBuffer{}
	return &bridge{
		log:  slog.New(slog.NewTextHandler(buf, &slog.HandlerOptions{Level: slog.LevelDebug})),
		ring: "r", limit: newLimiter(time.Minute),
		lookup: func(n kevlard.NodeID) (Member, bool) { return Member{Name: n, Addr: "10.0.0.7:7946"}, n == "seven" },
	}, buf
}

func TestBridgeLevels(t *testing.T) {
	for line, want := range map[string]string{
		"[DEBUG] memberlist: Failed UDP ping: n (timeout reached)\n":                                                     `level=DEBUG msg="Failed UDP ping: n (timeout reached)"`,
		"[INFO] memberlist: Suspect n has failed, no acks received\n":                                                    `level=INFO msg="Suspect n has failed, no acks received"`,
		"[WARN] memberlist: Refuting a suspect message (from: n)\n":                                                      `level=WARN msg="Refuting a suspect message (from: n)"`,
		"[ERR] memberlist: Push/Pull with n failed: x\n":                                                                 `level=ERROR msg="Push/Pull with n failed: x"`,
		"[ERROR] memberlist: Failed to compress payload: x\n":                                                            `level=ERROR msg="Failed to compress payload: x"`,
		"Err: Could not set the deadline: x\n":                                                                           `level=WARN msg="Err: Could not set the deadline: x"`,
		"[ERR] memberlist: Decrypt packet failed: no installed keys could decrypt the message from=1.2.3.4:5\n":          `level=WARN msg="a node at 1.2.3.4:5 gossips with a different secret"`,
		"[ERR] memberlist: discarding packet with unacceptable label \"x y\": from=1.2.3.4:5\n":                          `level=WARN msg="a node gossips in another ring; its packets are dropped" addr=1.2.3.4:5`,
		"[WARN] memberlist: Was able to connect to seven over TCP but UDP probes failed, network may be misconfigured\n": `node=seven addr=10.0.0.7:7946`,
	} {
		b, buf := newBridge()
		if n, err := b.Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("%q: wrote %d, %v", line, n, err)
		}
		if buf.count(want) != 1 {
			t.Errorf("%q became %q, want %q", line, buf.b.String(), want)
		}
	}
}

func TestBridgeLimits(t *testing.T) {
	b, buf := newBridge()
	for i := range 1000 {
		for _, line := range []string{
			fmt.Sprintf("[ERR] memberlist: Push/Pull with n failed: try %d", i),
			fmt.Sprintf("[ERR] memberlist: Decrypt packet failed: no installed keys could decrypt the message from=1.2.3.4:%d", i),
			"[WARN] memberlist: " + strings.Repeat("x", 10000),
		} {
			if _, err := b.Write([]byte(line)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := buf.count("level=ERROR"); n != 1 {
		t.Errorf("%d errors of one shape, want 1", n)
	}
	if n := buf.count("different secret"); n != 1 {
		t.Errorf("%d warnings for one source, want 1", n)
	}
	if n := buf.count(strings.Repeat("x", maxLogLine)); n != 0 {
		t.Errorf("%d uncut lines", n)
	}
}

func TestLimiter(t *testing.T) {
	l, now := newLimiter(time.Minute), time.Now()
	for i := range maxLogKeys {
		if !l.allow(fmt.Sprint(i), now) || l.allow(fmt.Sprint(i), now.Add(59*time.Second)) {
			t.Fatalf("key %d: want the first and not the second", i)
		}
	}
	if l.allow("more", now) {
		t.Error("passed with the map full")
	}
	if now = now.Add(time.Minute); !l.allow("more", now) || !l.allow("0", now) {
		t.Error("refused after the period")
	}
	if len(l.last) > maxLogKeys {
		t.Errorf("%d keys", len(l.last))
	}
}
