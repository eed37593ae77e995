package stage

import (
	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/protocol"
)

// Effect is what a stage asks of the node around it.
type Effect interface{ effect() }

// Reply sends a control message.
type Reply struct {
	To      kevlard.NodeID
	Message protocol.Message
}

// Forward sends one frame of finished work to the next stage.
type Forward struct {
	To    kevlard.NodeID
	Frame protocol.Frame
}

// Run gives the engine a batch.
type Run struct {
	Engine uint64
	Batch  Batch
}

// Start starts an engine and numbers its life.
type Start struct{ Engine uint64 }

// Kill kills the engine; the shell reports its exit as usual.
type Kill struct{ Engine uint64 }

// Changed says that what the node advertises of this stage is out of date.
type Changed struct{}

// Note is for the event log.
type Note struct {
	Type    string
	Session kevlard.SessionID
	Cause   string
	Detail  string
}

// Export reads finished cells and sends them to a standby, or, if To is empty, to the
// block memory of this node; Exported follows when they have been read.
type Export struct {
	Engine uint64
	ID     uint64
	Cell   int
	To     kevlard.NodeID
	Rows   protocol.Rows // without checksums
}

// Load fills cells from a copy; Loaded follows.
type Load struct {
	Engine  uint64
	ID      uint64
	Session kevlard.SessionID
	Pos     kevlard.Pos // of the first
	Cell    int
	From    []index.Run
}

func (Export) effect()  {}
func (Load) effect()    {}
func (Reply) effect()   {}
func (Forward) effect() {}
func (Run) effect()     {}
func (Start) effect()   {}
func (Kill) effect()    {}
func (Changed) effect() {}
func (Note) effect()    {}
