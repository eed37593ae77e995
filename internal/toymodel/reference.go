package toymodel

import (
	"math"

	"github.com/kevlard/kevlard"
)

// Reference returns the n tokens that a fault-free run generates after prompt.
// It shares nothing with Stage but the hash and the function's definition: no
// cells, no chunks, no rows; every token recomputes all positions of all layers.
func (m Model) Reference(prompt []kevlard.Token, n int, s kevlard.Sampling) []kevlard.Token {
	all := append([]kevlard.Token(nil), prompt...)
	for range n {
		column := make([]uint64, len(all))
		for i, t := range all {
			column[i] = mix(uint64(t), 0xe3, 0)
		}
		for layer := range uint64(m.Layers) {
			sum := uint64(0)
			for pos := range column {
				sum += mix(column[pos], layer, uint64(pos))
				column[pos] = mix(column[pos], sum, layer)
			}
		}
		state := column[len(column)-1]
		for i, t := range all {
			state = mix(state, uint64(i), uint64(t))
		}
		if s.Temperature > 0 {
			state = mix(state, s.Seed, uint64(math.Float32bits(s.Temperature)))
		}
		all = append(all, kevlard.Token(mix(state, 0x70, uint64(len(all)))%uint64(m.Vocab)))
	}
	return all[len(prompt):]
}

// KV returns what a fault-free run has in the cells of tokens, for each layer one
// value per position. It shares nothing with Stage but the hash.
func (m Model) KV(tokens []kevlard.Token) [][]uint64 {
	column := make([]uint64, len(tokens))
	for i, t := range tokens {
		column[i] = mix(uint64(t), 0xe3, 0)
	}
	kv := make([][]uint64, m.Layers)
	for layer := range kv {
		kv[layer] = make([]uint64, len(column))
		sum := uint64(0)
		for pos := range column {
			kv[layer][pos] = mix(column[pos], uint64(layer), uint64(pos))
			sum += kv[layer][pos]
			column[pos] = mix(column[pos], sum, uint64(layer))
		}
	}
	return kv
}
