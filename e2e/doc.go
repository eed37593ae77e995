// Package e2e has only tests: they start real daemons on loopback, break them, and
// judge by what a client saw. See the package internal/devmesh for the mesh and
// internal/devmesh/load for the client.
//
// TestMain builds the binary once with the environment's CGO flags, or takes the
// one that KEVLARD_BIN names. KEVLARD_E2E_LONG=1 adds the tests that take minutes.
package e2e
