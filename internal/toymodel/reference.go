package toymodel

import (
	"math"

	"github.com/kevlard/kevlard"
)

// Reference returns the n tokens that a fault-free run generates after prompt.
// It shares nothing with Stage but the hash and the function's definition: no
// cells, no chunks, no rows.
func (m Model) Reference(prompt []kevlard.Token, n int, s kevlard.Sampling) []kevlard.Token {
	return kevlard.Tokens(m.ReferenceSampled(prompt, n, s))
}

// ReferenceSampled is Reference with the log probabilities that s asks for.
func (m Model) ReferenceSampled(prompt []kevlard.Token, n int, s kevlard.Sampling) []kevlard.Sampled {
	all := append([]kevlard.Token(nil), prompt...)
	out := make([]kevlard.Sampled, n)
	sums := make([]uint64, m.Layers) // over all positions so far
	next := 0
	for k := range out {
		var state uint64 // of the last position
		for ; next < len(all); next++ {
			state = mix(uint64(all[next]), 0xe3, 0)
			for layer := range sums {
				sums[layer] += mix(state, uint64(layer), uint64(next))
				state = mix(state, sums[layer], uint64(layer))
			}
		}
		for i, t := range all {
			state = mix(state, uint64(i), uint64(t))
		}
		if s.Logprobs {
			out[k].Logprobs = m.referenceLogprobs(state, s.TopLogprobs)
		}
		if s.Temperature > 0 {
			state = mix(state, s.Seed, uint64(math.Float32bits(s.Temperature)))
		}
		out[k].Token = kevlard.Token(mix(state, 0x70, uint64(len(all))) % uint64(m.Vocab))
		all = append(all, out[k].Token)
	}
	return out
}

// referenceLogprobs writes the definition down once more: 256ths, each step down
// at least one.
func (m Model) referenceLogprobs(state uint64, top int) *kevlard.Logprobs {
	l := &kevlard.Logprobs{Chosen: float32(mix(state, 0x71, 0)&0xfff) / -256}
	token, steps := int(mix(state, 0x72, 0)%uint64(m.Vocab)), 0
	for i := 0; i < top && i < m.Vocab; i++ {
		steps += int(mix(state, 0x73, uint64(i))&0xff) + 1
		l.Top = append(l.Top, kevlard.TokenLogprob{Token: kevlard.Token(token), Logprob: float32(steps) / -256})
		token = (token + 1) % m.Vocab
	}
	return l
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
