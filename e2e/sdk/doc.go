// Package sdk has only tests: the official OpenAI clients for Go and for Node, and
// one that reads the socket byte by byte, against a running mesh whose hosts are
// killed under them. Every row of rows.json runs streamed and not, each without a
// fault and with the host of one of its stages killed at the first token, half way
// and as the last chunk is due; a client must see no difference.
//
// It is a module of its own so that the product depends on neither client. Its
// go.mod repeats the product's: after a change there, run `go mod tidy` here.
//
// KEVLARD_BIN names the binary under test. node/ has the Node client's part, which
// TestConformance runs after `npm ci` into the user's cache.
package sdk
