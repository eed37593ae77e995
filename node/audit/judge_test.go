package audit

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/kevlard/kevlard"
)

func floats(v ...float32) []byte {
	var out []byte
	for _, f := range v {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(f))
	}
	return out
}

func TestJudgeRows(t *testing.T) {
	exact, loose := middle, middle
	loose.Class = kevlard.BestEffort + "gpu"
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		mine, theirs []byte
		exact, loose bool // agree
	}{
		"equal":               {floats(1, -4.5, 3), floats(1, -4.5, 3), true, true},
		"equal NaN":           {floats(nan, 1), floats(nan, 1), true, true},
		"another order":       {floats(1, -4.5, 3), floats(1.0043, -4.5, 3), false, true},
		"half precision":      {floats(1, -4.5, 3), floats(1.026, -4.526, 2.98), false, true},
		"beyond":              {floats(1, -4.5, 3), floats(1, -4.5, 3.2), false, false},
		"NaN there":           {floats(1, -4.5, 3), floats(1, -4.5, nan), false, false},
		"NaN here":            {floats(1, nan, 3), floats(1, -4.5, 3), false, false},
		"infinite there":      {floats(1, 2), floats(1, float32(math.Inf(1))), false, false},
		"other sign of zero":  {floats(0, 1), floats(float32(math.Copysign(0, -1)), 1), false, true},
		"zeros against noise": {floats(0, 0), floats(0, 0.001), false, false},
	} {
		if got := differRows(exact, c.mine, c.theirs) == ""; got != c.exact {
			t.Errorf("%s, exact: agree %v", name, got)
		}
		if got := differRows(loose, c.mine, c.theirs) == ""; got != c.loose {
			t.Errorf("%s, best effort: agree %v", name, got)
		}
	}
}

func TestJudgeChoice(t *testing.T) {
	exact, loose := middle, middle
	loose.Class = kevlard.BestEffort + "gpu"
	choice := func(logs ...float32) kevlard.Sampled {
		s := kevlard.Sampled{Token: 1, Logprobs: &kevlard.Logprobs{Chosen: logs[0]}}
		for i, l := range logs {
			s.Logprobs.Top = append(s.Logprobs.Top, kevlard.TokenLogprob{Token: kevlard.Token(i + 1), Logprob: l})
		}
		return s
	}
	other := choice(-1, -2, -3)
	for i := range other.Logprobs.Top {
		other.Logprobs.Top[i].Token += 2 // one in three is the same
	}
	none := kevlard.Sampled{Token: 1, Logprobs: &kevlard.Logprobs{Chosen: -1}}
	swapped := choice(-1, -1.01)
	swapped.Token = 2
	for name, c := range map[string]struct {
		theirs       kevlard.Sampled
		exact, loose bool
	}{
		"equal":       {choice(-1, -2, -3), true, true},
		"near":        {choice(-1.05, -2, -3), false, true},
		"far":         {choice(-1, -2, -4), false, false},
		"others":      {other, false, false},
		"no list":     {none, false, false},
		"other token": {swapped, false, false},
	} {
		if got := differChoice(exact, choice(-1, -2, -3), c.theirs) == ""; got != c.exact {
			t.Errorf("%s, exact: agree %v", name, got)
		}
		if got := differChoice(loose, choice(-1, -2, -3), c.theirs) == ""; got != c.loose {
			t.Errorf("%s, best effort: agree %v", name, got)
		}
	}
	if differChoice(loose, choice(-1, -1.01), swapped) != "" {
		t.Error("best effort: a tie that falls the other way is a difference")
	}
	if differChoice(exact, choice(-1, -1.01), swapped) == "" {
		t.Error("exact: another token is none")
	}
}

// FuzzDifferRows reads rows that a peer made.
func FuzzDifferRows(f *testing.F) {
	f.Add(floats(1, 2), floats(1, 2.5))
	f.Add(floats(float32(math.NaN())), floats(float32(math.Inf(-1))))
	f.Fuzz(func(t *testing.T, mine, theirs []byte) {
		n := min(len(mine), len(theirs)) / 4 * 4
		mine, theirs = mine[:n], theirs[:n]
		loose := middle
		loose.Class = kevlard.BestEffort + "gpu"
		equal := string(mine) == string(theirs)
		if got := differRows(middle, mine, theirs) == ""; got != equal {
			t.Errorf("equal: %v, exact says %v", equal, got)
		}
		if equal && differRows(loose, mine, theirs) != "" {
			t.Error("equal rows are not close")
		}
	})
}
