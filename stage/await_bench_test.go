package stage

import (
	"fmt"
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/protocol"
)

// alike returns a full stage: 256 sessions whose prompts of 8192 tokens differ in the last
// one. The first computes; the others wait if wait.
func alike(b *testing.B, wait bool) (*Machine, func(i int) []kevlard.Token) {
	b.Helper()
	const n = 8192
	prompt := func(i int) []kevlard.Token {
		ts := make([]kevlard.Token, n)
		for k := range ts {
			ts[k] = kevlard.Token(k * 31 % 1000)
		}
		ts[n-2] = kevlard.Token(i)
		return ts
	}
	m := New(Config{
		Key: kevlard.StageKey{Model: kevlard.Digest{1}, Layers: kevlard.Layers{Lo: 0, Hi: 4}}, Width: width,
		Copies: index.New(index.Config{}), Keep: true,
	})
	m.Wake(1, 0, nil)
	m.EngineReady(1, 1, "toy", 256*(n+32), cellBytes, nil)
	for i := range 256 {
		p := protocol.Prepare{
			Session: kevlard.SessionID(fmt.Sprintf("s%03d", i)), Fence: fence(1), OwnerBoot: "o.1", Stage: m.Key(), Next: "next",
			Tokens: prompt(i), Positions: n + 10, Credit: 64,
		}
		if wait {
			p.Await = n - 1
		}
		m.Prepare(1, "owner", p, true, false, nil)
	}
	return m, prompt
}

// BenchmarkAwake looks at 255 waiting sessions.
func BenchmarkAwake(b *testing.B) {
	m, _ := alike(b, true)
	if len(m.waiting) != 255 {
		b.Fatalf("%d wait", len(m.waiting))
	}
	for b.Loop() {
		m.awake(1, nil)
	}
}

// BenchmarkDonor looks for one among 256 sessions.
func BenchmarkDonor(b *testing.B) {
	m, prompt := alike(b, false)
	p := protocol.Prepare{Tokens: prompt(999), Await: 8191}
	s := &slot{}
	for b.Loop() {
		m.donor(s, p)
	}
}

// BenchmarkHolds answers what a stage has of a prompt.
func BenchmarkHolds(b *testing.B) {
	m, prompt := alike(b, false)
	ts := prompt(999)
	for b.Loop() {
		if n, _ := m.Holds("", ts); n != 8190 {
			b.Fatalf("holds %d", n)
		}
	}
}
