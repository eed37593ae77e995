// Package rdma moves bulk pieces (see kvstream/mover) over RDMA: reliable queue pairs,
// one-sided writes with immediate into memory that the receiver has registered.
//
// # Connections
//
// A node dials Config.Conns connections to each peer it sends to, when it sends, as
// package kvstream/tcp does; pieces of a lane always use the same one. It asks the peer over
// the mesh (Config.Exchange, Mover.Answer), which has proved who they are, for its rails and
// matches them with its own (package rdma/rail): ports, addresses, the smaller MTU. In a second
// call the two ends tell each other their queue pairs and memory keys. Then each says hello
// over the fabric, so a connection that is up has been seen to carry bytes both ways. What travels after that is package rdma/flow's; this package carries it
// out.
//
// # Pieces
//
// A piece of up to 64 KiB with its header is copied into the sender's half of the ring and
// written into the receiver's half: no round trip, and Send returns at once. The header of a larger one
// asks for a place. The receiver calls Handler.Buffer and grants a place of its staging
// block, from which it copies to that buffer what the sender has written. The sender writes
// from a place of its own staging block, where it copied and summed the body before it asked.
// Send returns when the writes are posted.
//
// A send that is cancelled before its answer is taken back at no cost to the connection.
//
// # Failures
//
// The card tries again a finite number of times; then its queue pair fails, and with it
// the connection: Lost. A receiver learns of a sender that vanished when a body that it
// granted does not come for Config.Stall, or by the empty write that it tries every 15 s
// when nothing comes. Places of staging memory go back after the queue pair was destroyed:
// until then the card may write to them.
//
// # What peers can do to each other
//
// Who holds a connection can write into the ring of this connection and, at any time, into all
// of the receiver's staging block: its key is one for all. The checksums
// find what was overwritten unless the writer means to deceive. Packets are neither encrypted
// nor authenticated: as with mesh.plain, whoever is on the fabric can read and forge them.
package rdma
