//go:build cgo

package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/model"
)

// modelsDir holds the small model's f16 file and the reference continuations.
const modelsDir = "../../shared/models"

// modelPath returns the path of a test model or skips the test.
func modelPath(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range []string{"../model/fairy", modelsDir} {
		p := filepath.Join(dir, name)
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	t.Skipf("%s is neither in ../model/fairy nor in %s", name, modelsDir)
	return ""
}

// specOf is the stage of layers l of the model at path, with one thread.
func specOf(t testing.TB, path string, l kevlard.Layers, cells, rows int) Spec {
	t.Helper()
	m, err := model.Load(path, "")
	if err != nil {
		t.Fatal(err)
	}
	return NewSpec(m, l, 1, cells, rows)
}

// split cuts layers [0,n) into k stages.
func split(n, k int) []kevlard.Layers {
	var out []kevlard.Layers
	for i := range k {
		out = append(out, kevlard.Layers{Lo: i * n / k, Hi: (i + 1) * n / k})
	}
	return out
}

// openChain opens a model as k stages in this process.
func openChain(t testing.TB, path string, k, cells int) []*Stage {
	t.Helper()
	var out []*Stage
	m, err := model.Load(path, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range split(m.Layers, k) {
		s, err := Open(NewSpec(m, l, 1, cells, 512), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		out = append(out, s)
	}
	return out
}

// chain runs parts through all stages.
func chain(t testing.TB, stages []*Stage, parts ...Part) Result {
	t.Helper()
	var r Result
	for _, s := range stages {
		b := Batch{Rows: r.Rows}
		for _, p := range parts {
			if !s.info.First() {
				p.Tokens = nil
			}
			p.Sample = p.Sample && s.info.Last()
			b.Parts = append(b.Parts, p)
		}
		var err error
		if r, err = s.Forward(b); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// greedy continues prompt by n tokens.
func greedy(t testing.TB, stages []*Stage, cell int, prompt []kevlard.Token, n int) []kevlard.Token {
	t.Helper()
	var out []kevlard.Token
	for pos, next := 0, prompt; len(out) < n; {
		r := chain(t, stages, Part{Cell: cell, Pos: pos, N: len(next), Tokens: next, Sample: true})
		pos += len(next)
		next = kevlard.Tokens(r.Sampled)
		out = append(out, next...)
	}
	return out
}

type reference struct {
	Prompt    string          `json:"prompt"`
	PromptIDs []kevlard.Token `json:"prompt_ids"`
	IDs       []kevlard.Token `json:"ids"`
}

func references(t testing.TB) map[string][]reference {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(modelsDir, "references.json"))
	if err != nil {
		t.Skipf("no reference continuations: %v", err)
	}
	var refs map[string][]reference
	if err := json.Unmarshal(b, &refs); err != nil {
		t.Fatal(err)
	}
	return refs
}

// TestReferences: greedy output equals what two other engines agree on.
func TestReferences(t *testing.T) {
	for name, refs := range references(t) {
		for _, k := range []int{1, 2, 4, 8} {
			stages := openChain(t, modelPath(t, name), k, 512)
			tokens := 0
			for _, ref := range refs {
				got := greedy(t, stages, 3, ref.PromptIDs, len(ref.IDs))
				for i := range got {
					if got[i] != ref.IDs[i] {
						t.Errorf("%s, %d stages, %q: token %d of %d is %d, want %d", name, k, ref.Prompt, i, len(ref.IDs), got[i], ref.IDs[i])
						break
					}
				}
				tokens += len(got)
			}
			t.Logf("%s, %d stages: %d prompts, %d tokens", name, k, len(refs), tokens)
		}
	}
}
