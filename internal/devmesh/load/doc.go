// Package load is the client side of a local mesh: it streams completions over the
// OpenAI-compatible API exactly as a foreign client would and records what the
// client saw and when. The demo, the benches and the process tests judge a mesh by
// these records alone, never by what the mesh says of itself.
package load
