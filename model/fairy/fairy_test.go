package fairy

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
)

func TestFile(t *testing.T) {
	sum := sha256.Sum256(GGUF())
	if got := hex.EncodeToString(sum[:]); got != SHA256 {
		t.Errorf("%s has digest %s: want %s", Name, got, SHA256)
	}
}
