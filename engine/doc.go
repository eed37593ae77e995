// Package engine computes contiguous layers of a model on ggml. It is the only
// package that imports the compute library (github.com/ollama/ollama), and no
// tensor leaves it: tokens or rows of bytes go in, rows or tokens come out.
//
// A Stage runs in this process. A Process is the same stage in a child, so that a
// ggml abort, a GPU fault or the OOM killer takes down the child only; Serve is
// the child's main. Local chains stages in this process for one generation.
//
// Results are bitwise independent of batch company, chunking, cells and the number
// of stages where Info.Invariant says so, and equal between stages of equal
// Info.Class.
//
// # Who owns what
//
// A stage has one pool of KV cells. It keeps no sessions: every Part names its
// cells, and the caller decides who owns which. Forward excludes Forward; Read,
// Write and Copy may run beside it on other cells.
//
// # The protocol between Process and Serve
//
// The child inherits file descriptor 3, one end of a unix stream socket pair, and
// 4, a memory file (the area). Both sides run the same build, so there is no
// negotiation: the open frame carries version 2 and a child that is of another
// version says so and exits. The socket carries frames, integers little-endian:
//
//	bytes 0-3  length of what follows, 1 to 4 MiB
//	byte  4    kind
//	bytes 5-   body, one CBOR map with integer keys (the structs in frame.go); no
//	           indefinite lengths, no duplicate keys, arrays up to 131072
//
//	kind  from    body        meaning
//	1     parent  openBody    load this stage; the first frame, once
//	2     parent  forwardBody run this batch; rows lie in the input area
//	3     parent  cellsBody   read, write or copy cells through the KV area
//	4     parent  empty map   finish what runs and exit with code 0
//	65    child   progress    bytes loaded so far and in all
//	66    child   openedBody  loaded (or why not): the answer to 1
//	67    child   resultBody  the answer to 2; rows lie in the output area
//	68    child   cellsReply  the answer to 3
//
// One forward and one cells request may be outstanding, independently, because
// each has its own part of the area. A frame of another kind, a malformed one or an
// answer to nothing ends the connection, and the parent then kills the child. The
// child exits when its socket closes.
//
// The child sizes the area once it knows the model, before it answers open: input
// rows (MaxRows x Dim float32), output rows (as many), KV (1 MiB, or a cell if that
// is larger), each rounded up to 4096 bytes, in this order. The parent seals the
// size before it maps the area, so a child that misbehaves later can't make it
// fault.
//
// Priorities: the child makes itself SCHED_BATCH with nice 10, leads its own
// process group (a terminal's Ctrl-C does not reach it), is the first that the OOM
// killer takes, is killed by the kernel when its parent dies, and writes no core
// file, since a dump of gigabytes would delay the failover. Weights of over 16 MiB are
// read in a thread of their own that is SCHED_IDLE, so that loading never takes time from
// what serves.
//
// # Faults for tests
//
// With KEVLARD_ENGINE_FAULT=abort:TOKEN in the child's environment, a first stage
// calls abort(3) when a batch holds TOKEN, as a poisonous request would.
package engine
