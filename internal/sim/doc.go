// Package sim runs whole meshes of node.Machines on one thread in virtual time:
// the code that decides in the daemon, with the network, the engines, the ring
// and the clients around it replaced by seeded models. A seed fixes the mesh,
// the load and the faults, so every failure can be replayed; independent judges
// watch what goes in and out of each machine and never look inside one.
//
// # What is modelled
//
// Links delay (a minimum plus an exponential part) and keep order per class;
// they lose only what is under way when a connection breaks, as TCP does. A
// blocked direction holds what is sent until it opens or a keep-alive gives up.
// A frozen node steps nothing and later sees everything at once; a killed one
// loses all state and may come back as another boot. Engines are toy models
// that take time per row, exit, freeze and slow down. The ring is told of
// deaths after seconds and of records after fractions of one, each node at its
// own time, so views differ.
//
// Copies of KV cross connections of their own, which have a bandwidth and break by
// themselves; cells are read and written a while after they are asked for, while
// batches run; block memory holds nothing until a piece is stored, dies with the
// daemon and outlives the engine. Bits flip on the way and at rest. What a position
// must hold follows from the tokens of its session, so every acknowledgement and
// every load is compared with an independent recomputation.
//
// Owners die, freeze and wake up; their clients come back to any node, sometimes to two
// at once, and ask it to take the session over. Whatever connections a client has had, its
// text is that of the fault-free run; no epoch of a session has two owners, and an owner
// that could know of a newer epoch shows nothing more.
package sim
