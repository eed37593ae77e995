package plan

import "github.com/kevlard/kevlard"

// Event is what happened.
type Event interface{ event() }

// The events.
type (
	// Holder: a node says which units it has now. Rank orders holders for the choice of
	// sources; it should differ from fetcher to fetcher, so that not all ask the same ones.
	Holder struct {
		Node  kevlard.NodeID
		Rank  uint64
		Units []bool // by unit
	}
	// Gone: a node can't be reached any more. Its requests are answered by nobody.
	Gone struct{ Node kevlard.NodeID }
	// Listed answers AskList: List is the digest of the list of sums.
	Listed struct {
		Node kevlard.NodeID
		Unit int
		List kevlard.Digest
	}
	// NotListed answers AskList: there is no list, for now or (Absent) at all.
	NotListed struct {
		Node   kevlard.NodeID
		Unit   int
		Absent bool
	}
	// Compared answers Compare: which chunks are on disk and match the list.
	Compared struct {
		Unit int
		Have []bool // by chunk; nil: none
	}
	// Stored answers Ask: the chunk came, matches the list and is written.
	Stored struct{ Request uint64 }
	// Wrong answers Ask: what came does not match the list.
	Wrong struct{ Request uint64 }
	// Failed answers Ask: nothing came. Absent: the node does not have the unit.
	Failed struct {
		Request uint64
		Absent  bool
	}
	// Checked answers Check: whether the unit has its digest and is kept. Damaged are the
	// chunks on disk that do not match the list although they once did.
	Checked struct {
		Unit    int
		OK      bool
		Damaged []int
	}
	// Wake: Deadline has come.
	Wake struct{}
)

func (Holder) event()    {}
func (Gone) event()      {}
func (Listed) event()    {}
func (NotListed) event() {}
func (Compared) event()  {}
func (Stored) event()    {}
func (Wrong) event()     {}
func (Failed) event()    {}
func (Checked) event()   {}
func (Wake) event()      {}

// Effect is what is to be done.
type Effect interface{ effect() }

// The effects.
type (
	// AskList asks a holder for its list; answered by Listed or NotListed.
	AskList struct {
		Node kevlard.NodeID
		Unit int
	}
	// Compare reads what is on disk of a unit; answered by Compared.
	Compare struct {
		Unit int
		List kevlard.Digest
	}
	// Ask asks for a chunk under a list; answered by Stored, Wrong or Failed.
	Ask struct {
		Request     uint64
		Node        kevlard.NodeID
		Unit, Chunk int
		List        kevlard.Digest
	}
	// Cancel takes an Ask back. No answer counts any more.
	Cancel struct{ Request uint64 }
	// Check reads a whole unit, keeps it if it has its digest, and is answered by Checked.
	Check struct {
		Unit int
		List kevlard.Digest
	}
	// Dropped: a node is not asked any more in this fetch. Wrong says that it gave bytes
	// or a list that are not the unit's; else it did not answer.
	Dropped struct {
		Node  kevlard.NodeID
		Unit  int
		Wrong bool
	}
	// Done: all units were verified. Nothing follows.
	Done struct{}
	// GaveUp: nobody has the units Missing, or this node's disk damages the units Damaged.
	// Nothing follows.
	GaveUp struct{ Missing, Damaged []int }
)

func (AskList) effect() {}
func (Compare) effect() {}
func (Ask) effect()     {}
func (Cancel) effect()  {}
func (Check) effect()   {}
func (Dropped) effect() {}
func (Done) effect()    {}
func (GaveUp) effect()  {}
