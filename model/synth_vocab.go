package model

import (
	"encoding/binary"
	"math"
)

// synthMinVocab is the 256 bytes and two special tokens.
const synthMinVocab = 258

// kvWriter collects metadata pairs.
type kvWriter struct {
	b []byte
	n int
}

func (w *kvWriter) key(key string, kind valueKind) {
	w.n++
	w.raw(key)
	w.b = binary.LittleEndian.AppendUint32(w.b, uint32(kind))
}

func (w *kvWriter) raw(s string) {
	w.b = binary.LittleEndian.AppendUint64(w.b, uint64(len(s)))
	w.b = append(w.b, s...)
}

func (w *kvWriter) text(key, s string) {
	w.key(key, kindString)
	w.raw(s)
}

func (w *kvWriter) u32(key string, n uint32) {
	w.key(key, kindUint32)
	w.b = binary.LittleEndian.AppendUint32(w.b, n)
}

func (w *kvWriter) f32(key string, x float32) {
	w.key(key, kindFloat32)
	w.b = binary.LittleEndian.AppendUint32(w.b, math.Float32bits(x))
}

func (w *kvWriter) boolean(key string, b bool) {
	w.key(key, kindBool)
	if b {
		w.b = append(w.b, 1)
	} else {
		w.b = append(w.b, 0)
	}
}

func (w *kvWriter) array(key string, elem valueKind, n int) {
	w.key(key, kindArray)
	w.b = binary.LittleEndian.AppendUint32(w.b, uint32(elem))
	w.b = binary.LittleEndian.AppendUint64(w.b, uint64(n))
}

func (w *kvWriter) strings(key string, ss []string) {
	w.array(key, kindString, len(ss))
	for _, s := range ss {
		w.raw(s)
	}
}

// synthVocab writes a byte-level vocabulary of n tokens: the 256 bytes, words of
// syllables, and the two special tokens at the end. Every text can be encoded,
// and what random weights produce is pronounceable.
func (w *kvWriter) synthVocab(n int) {
	tokens := make([]string, 0, n)
	kinds := make([]tokenKind, 0, n)
	for c := range 256 {
		tokens = append(tokens, string(runeOf(byte(c))))
		kinds = append(kinds, tokenNormal)
	}
	for i := range n - synthMinVocab {
		tokens = append(tokens, string(runeOf(' '))+syllables(i))
		kinds = append(kinds, tokenNormal)
	}
	tokens = append(tokens, "<|begin_of_text|>", "<|end_of_text|>")
	kinds = append(kinds, tokenControl, tokenControl)

	w.text("tokenizer.ggml.model", "gpt2")
	w.text("tokenizer.ggml.pre", "llama-bpe")
	w.strings("tokenizer.ggml.tokens", tokens)
	w.array("tokenizer.ggml.token_type", kindInt32, n)
	for _, k := range kinds {
		w.b = binary.LittleEndian.AppendUint32(w.b, uint32(k))
	}
	// The words need no merges: this vocabulary's pre-tokenizer looks words up
	// whole. One merge keeps readers content that want a non-empty list.
	w.strings("tokenizer.ggml.merges", []string{string(runeOf(' ')) + " " + string(runeOf(' '))})
	w.u32("tokenizer.ggml.bos_token_id", uint32(n-2))
	w.u32("tokenizer.ggml.eos_token_id", uint32(n-1))
	w.boolean("tokenizer.ggml.add_bos_token", true)
	w.boolean("tokenizer.ggml.add_eos_token", false)
}

// syllables writes i in a number system whose digits are syllables, so that
// different numbers give different words.
func syllables(i int) string {
	const consonants, vowels = "bdfgklmnprstvz", "aeiou"
	var out []byte
	for {
		d := i % (len(consonants) * len(vowels))
		out = append(out, consonants[d/len(vowels)], vowels[d%len(vowels)])
		i = i/(len(consonants)*len(vowels)) - 1
		if i < 0 {
			return string(out)
		}
	}
}
