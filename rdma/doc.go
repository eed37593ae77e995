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
// asks for a place. The receiver calls Handler.Buffer. Memory that it was told of
// (Config.Memory) is granted as it is, so the card writes the body where it
// belongs; for other memory a place of the staging block is granted, and copied from. The
// sender writes the body, from Config.Memory as it is, else from a place of its own staging block,
// where it was copied and summed while it waited for nothing. Send returns when the writes are posted or, if they
// are from the caller's memory, completed.
//
// A send that is cancelled before its answer is taken back at no cost to the connection.
//
// # Failures
//
// The card tries again a finite number of times; then its queue pair fails, and with it
// the connection: Lost. A receiver learns of a sender that vanished when a body that it
// granted does not come for Config.Stall, or by the empty write that it tries every 15 s
// when nothing comes. Buffers are aborted after the queue pair was destroyed: until then
// the card may write to them.
//
// # What peers can do to each other
//
// Who holds a connection can write into the ring of this connection and, at any time, into all
// of the receiver's staging block and Config.Memory: the key is one for each block. The checksums
// find what was overwritten unless the writer means to deceive. Packets are neither encrypted
// nor authenticated: as with mesh.plain, whoever is on the fabric can read and forge them.
package rdma
