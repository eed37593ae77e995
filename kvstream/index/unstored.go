package index

// Unstored takes back a piece that has no place after all: there was no memory. The
// copy is given up, and the answer says so.
func (x *Index) Unstored(piece uint64, why string) *Answer {
	a := x.pieces[piece]
	if a == nil {
		return nil
	}
	delete(x.pieces, piece)
	var out *Answer
	if a.copied != nil {
		answer := x.dismiss(a.copied)
		answer.Message.Detail = why
		out = &answer
	}
	for _, b := range a.blocks {
		if a.tokens != nil { // of this node's own
			x.unuse(b)
		} else {
			x.unpin(b)
		}
	}
	return out
}
