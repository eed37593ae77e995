package index

import "github.com/kevlard/kevlard"

// Gone names a copy that is kept no more.
type Gone struct {
	Stage   kevlard.StageKey
	Session kevlard.SessionID
}

// TakeGone returns the copies that went since it was last asked. Without
// Config.Hot it has nothing to tell.
func (x *Index) TakeGone() []Gone {
	out := x.gone
	x.gone = nil
	return out
}

// Copy describes a copy that is kept.
type Copy struct {
	Salt      string
	Positions int             // the most it can ever hold
	Tokens    []kevlard.Token // of the leading positions that are stored
}

// Copy returns what is kept of a session at a stage.
func (x *Index) Copy(stage kevlard.StageKey, id kevlard.SessionID) (Copy, bool) {
	c := x.copies[copyKey{id, stage}]
	if c == nil {
		return Copy{}, false
	}
	return Copy{c.salt, c.positions, c.tokens[:c.stored:c.stored]}, true
}

// CellBytes returns the bytes of one position at a stage of which something is
// held, else 0.
func (x *Index) CellBytes(stage kevlard.StageKey) int {
	if p := x.pools[stage]; p != nil {
		return p.cellBytes
	}
	return 0
}
