// Package devmesh runs a whole mesh on one machine: N hosts and G gateways, each
// a real `kevlard agent` process with its own directory, configuration, log and
// control socket. `kevlard dev`, the demo, the benches and the process tests are
// built on it.
//
// Node i listens on 127.0.0.(10+i), gateways after the hosts, the same four ports
// on every address: API P, gossip P+1, mesh P+2, bulk P+3. Host i holds stage
// (i-1) mod S of pipeline (i-1) div S; the layers are split as evenly as S allows.
//
// The daemons are children of this process. Each stands in its own process group,
// so that a Ctrl-C in the terminal reaches only us and the mesh is stopped in
// order, and each gets SIGKILL from the kernel when we die without having stopped
// it. Signals go to processes that this package started and to their engines, to
// nothing else.
//
// Who owns what: one goroutine per Mesh, locked to its OS thread, forks (see
// spawner); one per process waits for it; one surveys the control sockets and
// writes cluster.json. Close ends them all.
package devmesh
