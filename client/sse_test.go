package client

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

// lines is a stream of n lines, made as it is read.
type lines struct {
	line []byte
	n    int
	rest []byte
}

func (l *lines) Read(p []byte) (int, error) {
	if len(l.rest) == 0 {
		if l.n == 0 {
			return 0, io.EOF
		}
		l.n, l.rest = l.n-1, l.line
	}
	n := copy(p, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

// A server that never ends its event must not fill the client's memory.
func TestEventOfManyLinesIsBounded(t *testing.T) {
	line := append(append([]byte("data:"), bytes.Repeat([]byte("x"), maxLine/4)...), '\n')
	in := &lines{line: line, n: 50}
	ev, err := newReader(in).next()
	if err == nil || len(ev.data) > maxLine {
		t.Errorf("an event of %d bytes, %v", len(ev.data), err)
	}
	if in.n < 40 {
		t.Errorf("read on: %d lines of 50 are left", in.n)
	}
}

func FuzzEvents(f *testing.F) {
	f.Add("id: 1/01JD/n0.0\ndata: {\"choices\":[]}\n\n: alive\n\ndata: [DONE]\n\n")
	f.Add("data: {\"error\":{\"message\":\"no\",\"code\":\"x\"}}\r\n\r\n")
	f.Add("data:a\ndata: b\nretry: 1\nevent\n\ndata: half")
	f.Fuzz(func(t *testing.T, text string) {
		r := newReader(strings.NewReader(text))
		size := 0
		for {
			ev, err := r.next()
			if err != nil {
				break
			}
			size += len(ev.id) + len(ev.data)
			if strings.Contains(ev.id, "\n") {
				t.Fatalf("%q is an ID of %q", ev.id, text)
			}
			if bad := failed(ev.data); bad != nil && !strings.Contains(ev.data, `"error"`) {
				t.Fatalf("%q is the error %v", ev.data, bad)
			}
		}
		if size > len(text) {
			t.Fatalf("events of %d bytes in %d", size, len(text))
		}
	})
}
