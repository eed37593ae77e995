package stage

import (
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/protocol"
)

const (
	width     = 8
	cellBytes = 16
)

// bench drives one stage by hand.
type bench struct {
	*testing.T
	m   *Machine
	now kevlard.Instant
	out []Effect // of the last call
}

// newBench returns a stage that is ready: layers [2,4), in the middle or last.
func newBench(t *testing.T, last bool, l Limits) *bench {
	t.Helper()
	b := &bench{T: t, now: 1, m: New(Config{
		Key: kevlard.StageKey{Model: kevlard.Digest{1}, Layers: kevlard.Layers{Lo: 2, Hi: 4}}, Last: last, Width: width, Limits: l,
		Copies: index.New(index.Config{BlockTokens: 4}),
	})}
	b.out = b.m.Wake(b.now, 0, nil)
	if len(only[Start](b)) != 1 {
		t.Fatalf("a new stage does not start its engine: %v", b.out)
	}
	b.out = b.m.EngineReady(b.now, 1, "toy", 1024, cellBytes, nil)
	b.m.pace.largest = 512 // no slow start, unless a test is about it
	return b
}

// only returns the effects of one type.
func only[E Effect](b *bench) []E {
	var es []E
	for _, e := range b.out {
		if e, ok := e.(E); ok {
			es = append(es, e)
		}
	}
	return es
}

// replies returns the messages of one type that were sent, with their targets.
func replies[M protocol.Message](b *bench) (ms []M, to []kevlard.NodeID) {
	for _, r := range only[Reply](b) {
		if m, ok := r.Message.(M); ok {
			ms, to = append(ms, m), append(to, r.To)
		}
	}
	return ms, to
}

func (b *bench) pass(d time.Duration) { b.now = b.now.Add(d) }

func fence(term uint64) kevlard.Fence { return kevlard.Fence{Epoch: 1, Term: term} }

func tokens(n int) []kevlard.Token {
	ts := make([]kevlard.Token, n)
	for i := range ts {
		ts[i] = kevlard.Token(i + 1)
	}
	return ts
}

// ask is a prepare of n known tokens and room for 100.
func (b *bench) ask(id kevlard.SessionID, term uint64, n int) protocol.Prepare {
	p := protocol.Prepare{
		Session: id, Fence: fence(term), OwnerBoot: "o.1", Stage: b.m.Key(), Last: b.m.cfg.Last,
		Tokens: tokens(n), Positions: 100, Credit: 64,
	}
	if !p.Last {
		p.Next = "next"
	}
	return p
}

// prepare sends p and returns the answer, if there is one.
func (b *bench) prepare(p protocol.Prepare) (protocol.Prepared, bool) {
	b.out = b.m.Prepare(b.now, "owner", p, true, false, nil)
	ms, _ := replies[protocol.Prepared](b)
	if len(ms) == 0 {
		return protocol.Prepared{}, false
	}
	return ms[len(ms)-1], true
}

func (b *bench) mustPrepare(id kevlard.SessionID, term uint64, n int) protocol.Prepared {
	b.Helper()
	a, ok := b.prepare(b.ask(id, term, n))
	if !ok || a.Refusal != "" {
		b.Fatalf("prepare %s: %v %+v", id, ok, a)
	}
	return a
}

// item makes work of n tokens at pos.
func item(id kevlard.SessionID, term uint64, pos, n int, start, sample bool) protocol.Item {
	return protocol.Item{
		Session: id, Fence: fence(term), Lo: 2, Pos: pos, Tokens: tokens(pos + n)[pos:], Start: start, Sample: sample,
		Width: width, Rows: make([]byte, n*width),
	}
}

func (b *bench) send(it protocol.Item) { b.out = b.m.Item(b.now, "prev", it, nil) }

// running returns the batch that the last call started.
func (b *bench) running() Batch {
	b.Helper()
	runs := only[Run](b)
	if len(runs) != 1 {
		b.Fatalf("%d batches were started, want 1: %v", len(runs), b.out)
	}
	return runs[0].Batch
}

// finish ends a batch after a millisecond; every sampled token is 9.
func (b *bench) finish(x Batch) {
	b.pass(time.Millisecond)
	var rows [][]byte
	var ts []kevlard.Sampled
	for _, p := range x.Parts {
		rows = append(rows, make([]byte, len(p.Tokens)*width))
		if p.Sample {
			ts = append(ts, kevlard.Sampled{Token: 9})
		}
	}
	b.out = b.m.BatchDone(b.now, b.m.engine, x.ID, rows, ts, nil)
}

// refusal returns the reason of the one refused item, and who was told.
func (b *bench) refusal() (protocol.Refusal, kevlard.NodeID) {
	ms, to := replies[protocol.Refused](b)
	if len(ms) != 1 {
		return "", ""
	}
	return ms[0].Reason, to[0]
}
