// Package fairy carries the small story model that kevlard's demo runs: 7.3
// million parameters trained from scratch on public-domain fairy tales.
// PROVENANCE.md lists every text.
package fairy

import _ "embed"

// Name is the model's file name.
const Name = "fairy-7m-q8_0.gguf"

// SHA256 is the digest of the file in hex.
const SHA256 = "d794c770aab37b90666d9d27414e4052bfb4ca6334f59a1854586cc1527cba9e"

// As a string the weights are immutable, and each caller gets an own copy.
//
//go:embed fairy-7m-q8_0.gguf
var file string

// GGUF returns a copy of the model file, 7.9 MB.
func GGUF() []byte { return []byte(file) }
