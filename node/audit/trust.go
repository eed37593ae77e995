package audit

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/topology"
)

// Trust counts what members say of each other's stages. A node is not believed when at
// least as many holders of the same layers dispute it as stand for it, itself among these.
// So one liar cannot ban two honest holders that agree, and a tie fails closed: of two
// holders that dispute each other, neither is used, because nobody else can tell who is
// right. A member can deny service in other ways anyway; a wrong answer it can't make pass.
//
// Holders that could still turn the count, and have said nothing of the node yet, are
// waited for, at most grace: a dispute makes them audit both at once. A stage that is not
// ready is judged when it is.
//
// What was outvoted for as long stays so until something new is said of the node: that holders
// who confirmed it are away, started anew as each is at times, is nothing new. Before that
// they may have confirmed it by an audit of before, and not have looked again.
//
// What was once not believed stays so until another holder agrees with it and those who
// stand for it are more, or the ring has forgotten its name: an auditor that is gone, or has
// forgotten, must not clear who it found.
//
// Layers that a node does not hold are disputed by who found it when it did, or who says so
// to harm it. There, who confirms it in what it holds stands for it.
type Trust struct {
	bad      map[claim]Tally
	outvoted map[claim]outvoted
	open     map[claim]kevlard.Instant // since when others could turn the count
	until    kevlard.Instant           // of the first of these; 0: there are none
	sum      uint64
}

// outvoted is who disputed a life of a node when more stood for it.
type outvoted struct {
	boot  kevlard.BootID
	by    []life
	since kevlard.Instant
}

// has reports whether all who dispute a node did so before, of the same life.
func (o outvoted) has(p outvoted) bool {
	return o.boot == p.boot && !slices.ContainsFunc(p.by, func(l life) bool { return !slices.Contains(o.by, l) })
}

type life struct {
	node kevlard.NodeID
	boot kevlard.BootID
}

// Tally is what holders say of a stage of another.
type Tally struct {
	Node    kevlard.NodeID
	Boot    kevlard.BootID
	Key     kevlard.StageKey
	For     []kevlard.NodeID // without itself
	Against []kevlard.NodeID
}

// String describes the tally for people: nodes, layers and digest.
func (t Tally) String() string {
	return fmt.Sprintf("layers %v of model %s: disputed by %v, confirmed by %v", t.Key.Layers, t.Key.Model, t.Against, t.For)
}

// Deadline returns when See must be called again with the same view.
func (t *Trust) Deadline() kevlard.Instant {
	if t.until == 0 {
		return kevlard.Never
	}
	return t.until
}

// Forgive gives others the time again that this node was itself away: what they said may
// still be in its sockets.
func (t *Trust) Forgive(now kevlard.Instant, late time.Duration) {
	t.until = 0
	for c, o := range t.outvoted {
		o.since = min(o.since.Add(late), now)
		t.outvoted[c] = o
	}
	for c, since := range t.open {
		since = min(since.Add(late), now)
		t.open[c] = since
		if due := since.Add(grace); t.until == 0 || due < t.until {
			t.until = due
		}
	}
}

// See takes a view and returns whose stages are not believed from now on, and whose are
// again. The words of nodes that are dead or have left count as long as the ring knows them.
func (t *Trust) See(now kevlard.Instant, v topology.View) (lost, regained []Tally) {
	if t.bad == nil {
		t.bad = map[claim]Tally{}
	}
	counts := t.count(v)
	open, still := map[claim]kevlard.Instant{}, map[claim]outvoted{}
	t.until = 0
	for _, c := range slices.SortedFunc(maps.Keys(counts), claim.compare) {
		x := counts[c]
		about, known := v.Node(c.node)
		if _, is := t.bad[c]; is || !known || len(x.Against) == 0 {
			continue
		}
		o := outvoted{about.Boot, lives(v, x.Against), now}
		was, is := t.outvoted[c]
		is = is && was.has(o)
		if is {
			o = was
		}
		if len(x.Against) <= len(x.For) || is && now >= was.since.Add(grace) {
			still[c] = o
			continue
		}
		judged := readyFor(about, c.key)
		if len(judged) == 0 {
			continue
		}
		if len(x.For)+waited(v, x, judged) >= len(x.Against) {
			since, was := t.open[c]
			if !was {
				since = now
			}
			if due := since.Add(grace); now < due {
				open[c] = since
				if t.until == 0 || due < t.until {
					t.until = due
				}
				continue
			}
		}
		t.bad[c] = *x
		t.sum += x.hash()
		lost = append(lost, *x)
	}
	t.open, t.outvoted = open, still
	for _, c := range slices.SortedFunc(maps.Keys(t.bad), claim.compare) {
		_, known := v.Node(c.node)
		x := counts[c]
		if known && (len(x.For) == 0 || len(x.For) < len(x.Against)) {
			if len(x.Against) > 0 {
				t.bad[c] = *x
			}
			continue
		}
		regained = append(regained, t.bad[c])
		delete(t.bad, c)
	}
	return lost, regained
}

func lives(v topology.View, nodes []kevlard.NodeID) (out []life) {
	for _, id := range nodes {
		n, _ := v.Node(id)
		out = append(out, life{id, n.Boot})
	}
	return out
}

// holds reports whether a node says that it holds a stage, ready or not.
func holds(n topology.Node, key kevlard.StageKey) bool {
	return slices.ContainsFunc(n.Stages, func(s topology.Stage) bool { return s.Key == key })
}

// readyFor are the stages of a node whose holders can stand for it where key is disputed:
// that one if the node holds it, else all; of these those that are ready.
func readyFor(n topology.Node, key kevlard.StageKey) (out []topology.Stage) {
	held := holds(n, key)
	for _, s := range n.Stages {
		if s.State == topology.Ready && (s.Key == key || !held) {
			out = append(out, s)
		}
	}
	return out
}

// waited is how many holders of these stages of a node have said nothing of it yet.
func waited(v topology.View, t *Tally, of []topology.Stage) (k int) {
	for _, n := range v.Nodes {
		if n.ID == t.Node || n.State != topology.Alive && n.State != topology.Suspect || slices.Contains(t.For, n.ID) || slices.Contains(t.Against, n.ID) {
			continue
		}
		if slices.ContainsFunc(n.Stages, func(s topology.Stage) bool {
			return s.State == topology.Ready && slices.ContainsFunc(of, func(o topology.Stage) bool { return s.Key == o.Key && s.Class == o.Class })
		}) {
			k++
		}
	}
	return k
}

// count adds up the words of a view, and has a tally of all that is not believed: there,
// who found it and says nothing now has not taken it back.
func (t *Trust) count(v topology.View) map[claim]*Tally {
	counts := words(v)
	for c, was := range t.bad {
		x := counts[c]
		if x == nil {
			about, _ := v.Node(c.node)
			x = &Tally{Node: c.node, Boot: about.Boot, Key: c.key}
			counts[c] = x
		}
		for _, by := range was.Against {
			if _, known := v.Node(by); known && !slices.Contains(x.For, by) && !slices.Contains(x.Against, by) {
				x.Against = append(x.Against, by)
			}
		}
	}
	for c, x := range counts {
		about, _ := v.Node(c.node)
		if holds(about, c.key) {
			continue
		}
		for _, s := range about.Stages { // their tallies stay as they are: these it holds
			if y := counts[claim{c.node, s.Key}]; y != nil {
				for _, by := range y.For {
					if !slices.Contains(x.For, by) && !slices.Contains(x.Against, by) {
						x.For = append(x.For, by)
					}
				}
			}
		}
	}
	return counts
}

// words adds up those of a view.
func words(v topology.View) map[claim]*Tally {
	counts := map[claim]*Tally{}
	note := func(about kevlard.NodeID, key kevlard.StageKey) *Tally {
		c := claim{about, key}
		if counts[c] == nil {
			n, _ := v.Node(about)
			counts[c] = &Tally{Node: about, Boot: n.Boot, Key: key}
		}
		return counts[c]
	}
	vote := func(votes *[]kevlard.NodeID, by kevlard.NodeID) { // once, whatever its record repeats
		if !slices.Contains(*votes, by) {
			*votes = append(*votes, by)
		}
	}
	for _, n := range v.Nodes {
		for _, s := range n.Stages {
			for _, about := range s.Disputes {
				if about != n.ID {
					vote(&note(about, s.Key).Against, n.ID)
				}
			}
		}
		for _, s := range n.Stages {
			for _, about := range s.Agrees {
				if x := note(about, s.Key); about != n.ID && !slices.Contains(x.Against, n.ID) {
					vote(&x.For, n.ID)
				}
			}
		}
	}
	return counts
}

// hash names a loss of trust alike at all nodes.
func (t Tally) hash() uint64 {
	h := sha256.Sum256(fmt.Appendf(nil, "%q %q %v %v", t.Node, t.Boot, t.Key.Model, t.Key.Layers))
	return binary.LittleEndian.Uint64(h[:])
}

// Distrusts reports whether a node is not believed.
func (t *Trust) Distrusts(n kevlard.NodeID) bool {
	for c := range t.bad {
		if c.node == n {
			return true
		}
	}
	return false
}

// Bad lists what is not believed, by node and stage.
func (t *Trust) Bad() []Tally {
	return slices.SortedFunc(maps.Values(t.bad), func(a, b Tally) int { return cmp.Or(cmp.Compare(a.Node, b.Node), a.Key.Compare(b.Key)) })
}

// Suffix keeps KV that was computed before trust was last lost apart from what is computed
// after: it may be the work of a liar, or come from one. It is empty as long as all were
// believed. Owners that have seen the same losses have the same suffix.
func (t *Trust) Suffix() string {
	if t.sum == 0 {
		return ""
	}
	return fmt.Sprintf("~%016x", t.sum)
}

// Suffix returns what of a salt is, or looks like, the suffix of an owner, "" if nothing.
func Suffix(salt string) string {
	const digits = 16
	at := len(salt) - digits - 1
	if at < 0 || salt[at] != '~' || strings.Trim(salt[at+1:], "0123456789abcdef") != "" {
		return ""
	}
	return salt[at:]
}
