package audit

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/kevlard/kevlard"
)

// How far results of one best-effort class may be apart. Between numerics of one set of
// weights the largest differences measured were, on values up to 4.5: 0.0043 for another
// order of additions in matrix products, and 0.026 in logits for half precision in
// attention over 800 tokens. Rows may differ by about five times as much, 1/32 of the
// largest value, and log probabilities by as much as two logits then can. That finds other
// weights, and not a slight change of them.
const (
	closeRows = 1.0 / 32
	closeLogs = 0.25
)

// tolerant reports whether results may differ although nothing is wrong.
func (h Holding) tolerant() bool { return strings.HasPrefix(h.Class, kevlard.BestEffort) }

// differRows says how two results of a stage differ that is not the last; "" if they agree.
func differRows(h Holding, mine, theirs []byte) string {
	var largest, apart float64
	at := -1
	for i := 0; i+4 <= len(mine); i += 4 {
		a, b := math.Float32frombits(binary.LittleEndian.Uint32(mine[i:])), math.Float32frombits(binary.LittleEndian.Uint32(theirs[i:]))
		if math.Float32bits(a) == math.Float32bits(b) {
			largest = max(largest, math.Abs(float64(a)))
			continue
		}
		if at < 0 {
			at = i / h.Width
		}
		largest = max(largest, math.Abs(float64(a)))
		if d := math.Abs(float64(a) - float64(b)); d > apart || math.IsNaN(d) {
			apart = d
		}
	}
	if at < 0 || h.tolerant() && apart <= closeRows*largest {
		return ""
	}
	return fmt.Sprintf("rows differ from position %d on, by up to %.3g where the largest value is %.3g", at, apart, largest)
}

// differChoice is the same for the last stage: the token chosen greedily and the log
// probabilities of the likeliest.
func differChoice(h Holding, mine, theirs kevlard.Sampled) string {
	a, b := mine.Logprobs, theirs.Logprobs
	same := mine.Token == theirs.Token && equal(a.Chosen, b.Chosen) && len(a.Top) == len(b.Top)
	for i := 0; same && i < len(a.Top); i++ {
		same = a.Top[i].Token == b.Top[i].Token && equal(a.Top[i].Logprob, b.Top[i].Logprob)
	}
	if same || h.tolerant() && near(a.Top, b.Top) {
		return ""
	}
	return fmt.Sprintf("token %d with log probability %.6g here, token %d with %.6g there", mine.Token, a.Chosen, theirs.Token, b.Chosen)
}

func equal(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }

// near reports whether at least half of the likeliest tokens are the same, and these about
// as likely.
func near(a, b []kevlard.TokenLogprob) bool {
	both := 0
	for _, x := range a {
		for _, y := range b {
			if x.Token != y.Token {
				continue
			}
			if d := math.Abs(float64(x.Logprob) - float64(y.Logprob)); !(d <= closeLogs) {
				return false
			}
			both++
		}
	}
	return len(a) > 0 && 2*both >= max(len(a), len(b))
}
