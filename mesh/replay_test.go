package mesh

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// recorder keeps what is written.
type recorder struct {
	io.ReadWriter
	sent bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error) {
	r.sent.Write(b)
	return r.ReadWriter.Write(b)
}

// TestReplayedProof plays what was said in an admission again, to the same acceptor and to
// another node, by one who has even the dialler's key: their nonces are fresh.
func TestReplayedProof(t *testing.T) {
	a, c := start(t, testConfig(t, "a")), start(t, testConfig(t, "c"))
	s := newStranger(t, testConfig(t, "b"))
	conn, stream := s.open(t, a)
	tape := &recorder{ReadWriter: stream}
	if _, err := s.dial(tape, a.id, classControl, 1); err != nil {
		t.Fatalf("the genuine admission: %v", err)
	}
	conn.Close()

	for _, to := range []*testNode{a, c} {
		_, stream = s.open(t, to)
		if _, err := stream.Write(tape.sent.Bytes()); err != nil {
			t.Fatal(err)
		}
		if _, err := receive(stream, kindHello); err != nil {
			t.Fatal(err)
		}
		_, err := receive(stream, kindProof)
		wantMismatch(t, "replayed to "+string(to.cfg.Self), err)
	}
}

func wantMismatch(t *testing.T, what string, err error) {
	t.Helper()
	if refused := (*RefusedError)(nil); !errors.As(err, &refused) || !strings.Contains(refused.Reason, "secret mismatch") {
		t.Errorf("%s: %v, want a secret mismatch", what, err)
	}
}

// admit runs an admission of b at a over a pipe, and returns what the acceptor wrote;
// between edits the dialler's hello on the way, as nobody can who has to break TLS first.
func admit(t *testing.T, between func(hello) hello) (answer []byte, acceptor, dialler error) {
	t.Helper()
	a, b := newStranger(t, testConfig(t, "a")), newStranger(t, testConfig(t, "b"))
	a.versions, b.versions = Versions{1, 2}, Versions{1, 2}
	near, far := net.Pipe()
	mid, end := net.Pipe()
	for _, c := range []net.Conn{near, far, mid, end} {
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
	}
	go func() { // the way there
		defer mid.Close()
		raw, err := receive(far, kindHello)
		if err != nil {
			return
		}
		h, err := decodeHello(raw)
		if err != nil || send(mid, kindHello, between(h).encode()) != nil {
			return
		}
		_, _ = io.Copy(mid, far) // ends with the test's pipes
	}()
	go func() { // and back
		defer far.Close()
		_, _ = io.Copy(far, mid)
	}()
	done := make(chan error, 1)
	tape := &recorder{ReadWriter: end}
	go func() {
		in, err := a.accept(tape, b.id)
		if err == nil {
			err = send(tape, kindProof, in.reply)
		}
		end.Close()
		done <- err
	}()
	_, dialler = b.dial(near, a.id, classControl, 1)
	near.Close()
	acceptor = <-done
	return tape.sent.Bytes(), acceptor, dialler
}

// TestLoweredVersions: who changes the dialler's range on its way, so that both settle for
// an older protocol, is found by the proofs, which cover both hellos.
func TestLoweredVersions(t *testing.T) {
	_, acceptor, dialler := admit(t, func(h hello) hello { return h })
	if acceptor != nil || dialler != nil {
		t.Fatalf("untouched: %v, %v", acceptor, dialler)
	}
	_, acceptor, dialler = admit(t, func(h hello) hello {
		h.versions.Max = 1
		return h
	})
	wantMismatch(t, "the acceptor of a lowered range", acceptor)
	wantMismatch(t, "its dialler", dialler)
}

// TestReplayedAnswer plays an acceptor's words to a dialler that begins anew.
func TestReplayedAnswer(t *testing.T) {
	answer, acceptor, dialler := admit(t, func(h hello) hello { return h })
	if acceptor != nil || dialler != nil {
		t.Fatalf("the genuine admission: %v, %v", acceptor, dialler)
	}
	b, a := newStranger(t, testConfig(t, "b")), newStranger(t, testConfig(t, "a"))
	_, err := b.dial(struct {
		io.Reader
		io.Writer
	}{bytes.NewReader(answer), io.Discard}, a.id, classControl, 1)
	wantMismatch(t, "a replayed answer", err)
}
