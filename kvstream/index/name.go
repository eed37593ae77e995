package index

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/kevlard/kevlard"
)

// Name is the name of a block of KV: a hash over everything that its bytes depend
// on, which is the seed and every token up to the block's last.
type Name [16]byte

// Seed names what KV depends on besides the tokens: the weights (the model's id
// and the layers), the numerics class of the engine, and the salt that keeps
// tenants apart.
func Seed(stage kevlard.StageKey, class, salt string) Name {
	h := sha256.New()
	h.Write(stage.Model[:])
	var b [8]byte
	for _, v := range [...]int{stage.Layers.Lo, stage.Layers.Hi, len(class), len(salt)} {
		binary.LittleEndian.PutUint64(b[:], uint64(v))
		h.Write(b[:])
	}
	h.Write([]byte(class))
	h.Write([]byte(salt))
	return Name(h.Sum(nil)[:16])
}

// Chain returns the name of the block that holds tokens and follows the block
// named before (or a seed).
func Chain(before Name, tokens []kevlard.Token) Name {
	b := make([]byte, 0, 16+4*len(tokens))
	b = append(b, before[:]...)
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	sum := sha256.Sum256(b)
	return Name(sum[:16])
}
