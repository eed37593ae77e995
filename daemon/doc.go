// Package daemon is the shell around node.Machine: it gives the machine the
// time and what happened, and carries out what it decides. It decides nothing
// about sessions, stages or routes itself.
//
// # Goroutines and what they own
//
//	mesh     links and connections; its readers call this package's handlers
//	ring     gossip
//	copies   the block store; places rows that came, sends rows to standbys
//	engines  the goroutines of each engine's life: it, its batches, its KV
//	records  the node records: pulls those that moved, publishes our own, makes views
//	log      writes the event log to slog
//	loop     node.Machine; every event passes its inbox, one at a time
//	leave    waits for Leave
//
// Parts start in this order and stop in reverse (internal/lifecycle). The loop
// never blocks: it encodes, queues, appends, and hands work to the goroutine that
// owns the thing. What the machine sends to its own node comes back as an event
// without passing the inbox, before anything else.
//
// # Back-pressure
//
// The inbox is bounded, in events and in bytes of frames, and those who fill it
// block: connection readers, engine goroutines, callers of Generate. A peer that
// sends faster than the loop works is held up by TCP; others only while there is no
// room, as each connection has its own reader.
//
// KV passes the loop by: pieces from peers wait under a number for the machine's
// word, in bounded memory. When that is full, pieces are refused, and the machines
// see to it that they are sent again.
//
// # Readers
//
// The loop publishes an immutable snapshot after it worked, at most every
// snapshotEvery; all read methods (Members, Topology, Sessions, Status, Ready,
// metrics) work from it and never wait for the loop.
//
// # Peers
//
// A peer counts as up (node.PeerUp) when both connections that this node dialled
// to it stand; it has then proved its boot. That is what sending needs. Peers
// that can only reach us are not routed to, and their messages are taken.
package daemon
