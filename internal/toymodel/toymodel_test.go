package toymodel_test

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/internal/toymodel"
	"github.com/kevlard/kevlard/stage"
)

var model = toymodel.Model{Layers: 6, Vocab: 97, Width: 24}

// pipeline is a straightforward driver: one session in one extent per stage.
type pipeline struct {
	t      rapid.TB
	stages []*toymodel.Stage
	cell   int
}

func newPipeline(t rapid.TB, cuts []int, cell int) *pipeline {
	p := &pipeline{t: t, cell: cell}
	lo := 0
	for _, hi := range append(slices.Clone(cuts), model.Layers) {
		s, err := toymodel.NewStage(model, kevlard.Layers{Lo: lo, Hi: hi}, 256)
		if err != nil {
			t.Fatal(err)
		}
		p.stages, lo = append(p.stages, s), hi
	}
	return p
}

// forward runs all[pos:] through the stages and returns the sampled token.
func (p *pipeline) forward(all []kevlard.Token, pos int, sample bool, s kevlard.Sampling, damage func(stage int, rows []byte)) kevlard.Sampled {
	part := stage.Part{Cell: p.cell, Pos: pos, Tokens: all[pos:], Sample: sample, Sampling: s, History: all}
	var sampled []kevlard.Sampled
	for i, st := range p.stages {
		rows, out, err := st.Forward(stage.Batch{Parts: []stage.Part{part}})
		if err != nil {
			p.t.Fatal(err)
		}
		part.Rows, sampled = rows[0], out
		if damage != nil && part.Rows != nil {
			damage(i, part.Rows)
		}
	}
	if !sample {
		return kevlard.Sampled{Token: -1}
	}
	return sampled[0]
}

func (p *pipeline) generate(prompt []kevlard.Token, chunk, n int, s kevlard.Sampling) (out []kevlard.Sampled) {
	all := slices.Clone(prompt)
	for pos := 0; pos < len(prompt); pos += chunk {
		end := min(pos+chunk, len(prompt))
		if tok := p.forward(all[:end], pos, end == len(prompt), s, nil); tok.Token >= 0 {
			all, out = append(all, tok.Token), append(out, tok)
		}
	}
	for len(all) < len(prompt)+n {
		tok := p.forward(all, len(all)-1, true, s, nil)
		all, out = append(all, tok.Token), append(out, tok)
	}
	return out
}

func TestStagesAgreeWithReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prompt := rapid.SliceOfN(rapid.Int32Range(0, 96), 1, 40).Draw(t, "prompt")
		s := kevlard.Sampling{Temperature: rapid.SampledFrom([]float32{0, 0.8}).Draw(t, "temperature"), Seed: rapid.Uint64().Draw(t, "seed")}
		if s.Logprobs = rapid.Bool().Draw(t, "logprobs"); s.Logprobs {
			s.TopLogprobs = rapid.IntRange(0, 20).Draw(t, "top")
		}
		cuts := rapid.SampledFrom([][]int{nil, {3}, {1, 5}, {1, 2, 3, 4, 5}}).Draw(t, "cuts")
		p := newPipeline(t, cuts, rapid.IntRange(0, 100).Draw(t, "cell"))
		got := p.generate(prompt, rapid.IntRange(1, 40).Draw(t, "chunk"), 12, s)
		if want := model.ReferenceSampled(prompt, 12, s); !reflect.DeepEqual(got, want) {
			t.Fatalf("got %v, the reference says %v", got, want)
		}
	})
}

// TestFaultsShow breaks a run in each way that a mesh could, and wants other
// tokens than the reference's.
func TestFaultsShow(t *testing.T) {
	prompt := []kevlard.Token{5, 17, 17, 3, 90, 41, 8}
	want := model.Reference(prompt, 20, kevlard.Sampling{})
	faults := map[string]func(*pipeline, []kevlard.Token){
		"none": func(*pipeline, []kevlard.Token) {},
		"lost": func(p *pipeline, all []kevlard.Token) { p.stages[1] = newPipeline(p.t, []int{2}, p.cell).stages[1] },
		"stale": func(p *pipeline, all []kevlard.Token) {
			p.forward([]kevlard.Token{9, 9, 9}, 2, false, kevlard.Sampling{}, nil)
		},
		"shifted": func(p *pipeline, all []kevlard.Token) { p.cell++ },
		"flipped": func(p *pipeline, all []kevlard.Token) {
			p.forward(all[:4], 3, false, kevlard.Sampling{}, func(_ int, rows []byte) { rows[20] ^= 1 })
		},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			p := newPipeline(t, []int{2}, 10)
			all := slices.Clone(prompt)
			all = append(all, p.forward(all, 0, true, kevlard.Sampling{}, nil).Token)
			fault(p, all)
			for len(all) < len(prompt)+20 {
				all = append(all, p.forward(all, len(all)-1, true, kevlard.Sampling{}, nil).Token)
			}
			if same := slices.Equal(all[len(prompt):], want); same != (name == "none") {
				t.Fatalf("tokens %v, fault-free %v", all[len(prompt):], want)
			}
		})
	}
}

func TestBatchCompanyDoesNotMatter(t *testing.T) {
	a := []kevlard.Token{1, 2, 3}
	b := []kevlard.Token{4, 5, 6, 7, 8}
	part := func(cell int, toks []kevlard.Token) stage.Part { return stage.Part{Cell: cell, Tokens: toks} }
	run := func(parts ...stage.Part) [][]byte {
		s, err := toymodel.NewStage(model, kevlard.Layers{Lo: 0, Hi: 2}, 64)
		if err != nil {
			t.Fatal(err)
		}
		rows, _, err := s.Forward(stage.Batch{Parts: parts})
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	both, alone := run(part(0, a), part(10, b)), run(part(30, b))
	if !bytes.Equal(both[1], alone[0]) {
		t.Fatal("a part's rows depend on its company or its cells")
	}
}

// TestCellsMove goes on in another stage from the cells of the first.
func TestCellsMove(t *testing.T) {
	l := kevlard.Layers{Lo: 1, Hi: 4}
	stages := make([]*toymodel.Stage, 2)
	for i := range stages {
		s, err := toymodel.NewStage(model, l, 64)
		if err != nil {
			t.Fatal(err)
		}
		stages[i] = s
	}
	rows := make([]byte, 7*model.Width)
	for i := range rows {
		rows[i] = byte(i)
	}
	run := func(s *toymodel.Stage, cell, pos, n int) []byte {
		rows, _, err := s.Forward(stage.Batch{Parts: []stage.Part{{Cell: cell, Pos: pos, Tokens: make([]kevlard.Token, n), Rows: rows[pos*model.Width : (pos+n)*model.Width]}}})
		if err != nil {
			t.Fatal(err)
		}
		return rows[0]
	}
	run(stages[0], 3, 0, 5)
	kv := make([]byte, 5*stages[0].CellBytes())
	if err := stages[0].Read(3, 5, kv); err != nil {
		t.Fatal(err)
	}
	if err := stages[1].Write(40, 5, kv); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(run(stages[0], 3, 5, 2), run(stages[1], 40, 5, 2)) {
		t.Error("the second stage computes something else")
	}
	for name, err := range map[string]error{
		"outside":   stages[0].Read(60, 5, kv),
		"negative":  stages[0].Write(-1, 5, kv),
		"too short": stages[0].Read(0, 5, kv[1:]),
		"too long":  stages[0].Write(0, 4, kv),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestBadInput(t *testing.T) {
	if _, err := toymodel.NewStage(toymodel.Model{Layers: 2, Vocab: 3, Width: 7}, kevlard.Layers{Lo: 0, Hi: 1}, 8); err == nil {
		t.Error("a width of 7 was taken")
	}
	if _, err := toymodel.NewStage(model, kevlard.Layers{Lo: 5, Hi: 7}, 8); err == nil {
		t.Error("layers past the end were taken")
	}
	s, err := toymodel.NewStage(model, kevlard.Layers{Lo: 1, Hi: 6}, 8)
	if err != nil {
		t.Fatal(err)
	}
	row := make([]byte, model.Width)
	for name, p := range map[string]stage.Part{
		"no tokens":    {},
		"outside":      {Cell: 7, Pos: 1, Tokens: []kevlard.Token{1}, Rows: row},
		"short rows":   {Tokens: []kevlard.Token{1}, Rows: row[1:]},
		"not a token":  {Tokens: []kevlard.Token{97}, Rows: row},
		"wrong memory": {Tokens: []kevlard.Token{1}, Rows: row, Sample: true, History: []kevlard.Token{1, 2}},
	} {
		if _, _, err := s.Forward(stage.Batch{Parts: []stage.Part{p}}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
