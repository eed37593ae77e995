package verbs

import "fmt"

// Opcode is what a work request does.
type Opcode uint32

// The requests that can be sent, by the numbers of the verbs.
const (
	OpWrite          Opcode = 0 // puts bytes into the peer's memory; the peer is not told
	OpWriteImmediate Opcode = 1 // so, and takes one of the peer's receives, with the immediate
	OpSend           Opcode = 2 // fills one of the peer's receives
)

// Flags of a Work to be sent.
const (
	Signaled uint32 = 2 // a completion when done; without it only when it fails
	Inline   uint32 = 8 // the bytes are copied at once; at most QueuePair.Inline of them
)

// Work is one request: to send, or to receive (then only ID, Local, Bytes and
// LocalKey count). A request without bytes needs no key.
type Work struct {
	ID        uint64 // comes back in its Completion
	Local     uint64 // address
	Remote    uint64 // address at the peer
	Bytes     uint32
	LocalKey  uint32
	RemoteKey uint32
	Immediate uint32
	Op        Opcode
	Flags     uint32
}

// Completion is the end of one request.
type Completion struct {
	ID     uint64
	Status Status
	Kind   Kind // valid only on success
	Vendor uint32
	Bytes  uint32 // received: of a write with immediate, the bytes written
	// Immediate comes with ReceivedImmediate.
	Immediate    uint32
	QP           uint32
	HasImmediate bool
}

// Err returns nil, or a *WorkError.
func (c Completion) Err() error {
	if c.Status == StatusSuccess {
		return nil
	}
	return &WorkError{Status: c.Status, Vendor: c.Vendor, QP: c.QP}
}

// Kind is what has completed.
type Kind uint32

// The kinds of completions, by the numbers of the verbs.
const (
	Sent              Kind = 0
	Written           Kind = 1
	Received          Kind = 128
	ReceivedImmediate Kind = 129 // a peer's write with immediate took a receive
)

func (k Kind) String() string {
	switch k {
	case Sent:
		return "sent"
	case Written:
		return "written"
	case Received:
		return "received"
	case ReceivedImmediate:
		return "received immediate"
	}
	return fmt.Sprint(uint32(k))
}
