package engine

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// An engine may print anything before it dies.
func FuzzForward(f *testing.F) {
	f.Add([]byte("GGML_ASSERT: no\nabort\n"))
	f.Add([]byte("\xff\xfe\r\n\n" + strings.Repeat("x", 2*maxLine) + "\ny"))
	f.Fuzz(func(t *testing.T, text []byte) {
		tail := forward(bytes.NewReader(text), slog.New(slog.DiscardHandler), func() time.Time { return time.Time{} })
		if !utf8.ValidString(tail) {
			t.Fatalf("the tail %q is not text", tail)
		}
		// A byte that is no text becomes one of three bytes.
		if n := strings.Count(tail, "\n"); n >= maxTail || len(tail) > maxTail*(3*maxLine+1) {
			t.Fatalf("a tail of %d lines, %d bytes", n+1, len(tail))
		}
	})
}
