//go:build cgo

package engine

import (
	"testing"
	"time"

	kvcodec "github.com/kevlard/kevlard/kvstream/codec"
)

// TestCompressKV: real cells survive the codec of the KV streams, and shrink by what
// their exponents are worth; the test logs by how much.
func TestCompressKV(t *testing.T) {
	const n = 240
	for _, name := range []string{"fairy-7m-q8_0.gguf", "fairy-7m-f16.gguf"} {
		chain := openChain(t, modelPath(t, name), 1, 256)
		greedy(t, chain, 0, references(t)["fairy-7m-q8_0.gguf"][0].PromptIDs, n)
		cells := make([]byte, n*chain[0].info.CellBytes)
		if err := chain[0].Read(0, n, cells); err != nil {
			t.Fatal(err)
		}
		m, err := kvcodec.Measure(cells, kvcodec.F32, time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes of KV, ratio %.3f", name, len(cells), m.Ratio)
		if m.Ratio < 1.1 {
			t.Errorf("%s: ratio %.3f, want at least 1.1", name, m.Ratio)
		}
	}
}
