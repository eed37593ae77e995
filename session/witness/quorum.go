package witness

import (
	"slices"

	"github.com/kevlard/kevlard/protocol"
)

// least is the fewest witnesses that a session has. With one, it could be taken
// over by either side of a broken link between two nodes.
const least = 2

// Elects reports whether the witnesses for which has is true make an election.
func Elects(w protocol.Witnesses, has func(protocol.Life) bool) bool {
	enough := func(set []protocol.Life) bool { return count(set, has) >= len(set)/2+1 }
	return enough(w.Now) && (len(w.Before) == 0 || enough(w.Before))
}

// Commits reports whether what the witnesses for which has is true have
// acknowledged is known to every later election.
func Commits(w protocol.Witnesses, has func(protocol.Life) bool) bool {
	enough := func(set []protocol.Life) bool { return count(set, has) >= len(set)-len(set)/2 }
	return enough(w.Now) && (len(w.Before) == 0 || enough(w.Before))
}

func count(set []protocol.Life, has func(protocol.Life) bool) int {
	n := 0
	for _, l := range set {
		if has(l) {
			n++
		}
	}
	return n
}

// All lists the witnesses of w, those that are being replaced too.
func All(w protocol.Witnesses) []protocol.Life {
	out := slices.Clone(w.Now)
	for _, l := range w.Before {
		if !slices.Contains(out, l) {
			out = append(out, l)
		}
	}
	return out
}

// newer orders what two records say of the witnesses.
func newer(epoch uint64, version uint64, thanEpoch, thanVersion uint64) bool {
	return epoch > thanEpoch || epoch == thanEpoch && version > thanVersion
}
