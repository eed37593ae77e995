// Package model reads GGUF files: what they hold, which parts a stage of a
// pipeline needs, what identifies those parts, and how text becomes tokens and
// tokens become text again. It is pure Go and knows nothing of how a model is
// computed.
//
// A [File] is the parsed header of one GGUF file: metadata and the places of
// the tensors. A [Manifest] is what a node announces about it: hyperparameters
// that were checked against every tensor, and the [Unit]s the model is made of
// (embedding, each layer, head, globals), each named by a digest.
//
// A node that fetches weights from its peers keeps each unit in a file of its own: a
// directory of [Parts], which [Open] and [Loader] take wherever they take a file. It has
// the whole header, so its manifest is that of the model, and fails where a tensor is
// read whose unit is not there.
//
// # What equal digests mean
//
// Two units have equal digests exactly when an engine computes the same
// function with them: the digest covers the role of each tensor ("attn_q.weight",
// without the layer's number), its type, shape and bytes, and the
// hyperparameters that the unit's computation reads (head counts, eps, rope).
// It covers neither the file's name, nor the order or offsets of tensors in it,
// nor metadata that only describes. So the same layer in two files, or at two
// depths of one model, is the same unit; a head tied to the embedding equals an
// untied one with the same bytes. A model's ID covers its architecture, its
// shape and the digests of all its units in order.
package model
