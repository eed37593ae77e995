// Package verbs speaks to RDMA cards through libibverbs: devices and ports,
// registered memory, completion queues and reliable-connected queue pairs. It adds
// nothing that the verbs do not have; who talks to whom, and what the bytes are, is
// package rdma's.
//
// # How it is built
//
// The structures come from the headers of Debian's libibverbs-dev at build time, so
// that the compiler and not this package knows their layout. The build tag rdma says
// that the headers are there; the Makefile sets it. Without it, without cgo or on
// another system the package is a stub, and Load returns ErrNotBuilt.
//
// The library itself is opened when Load is called, symbol by symbol with the version
// of each (shim.c): one binary runs on hosts with it and without. The calls of the
// fast path (posting, polling, arming) are inline functions of the headers that go
// through the driver's own table; shim.c has them compiled in.
//
// # Memory
//
// Cards write to memory behind the runtime's back, so what is registered never comes
// from Go's heap: it is mapped (Context.NewSlab) or mapped by the caller
// (Context.Register).
//
// # Waiting
//
// A completion queue has a channel whose file descriptor is in Go's poller. Queue.Wait
// sleeps there and costs no thread.
//
// # Closing
//
// Queue pairs go before their queues, all before their Context. A call on what is
// closed returns ErrClosed and touches nothing, also when it runs at the same time as
// Close. Memory may be given back only when no card can write to it any more: after
// the queue pairs that the peer knows its key from have been closed, or after Region.Close.
package verbs
