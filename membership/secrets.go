package membership

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

// MaxSecrets is how many secrets a node holds: the one in use, and the one before
// or after it while the ring's is being changed.
const MaxSecrets = 2

// SecretID names a secret without giving it away.
func SecretID(secret []byte) string {
	sum := sha256.Sum256(append([]byte("kevlard secret id\x00"), secret...))
	return hex.EncodeToString(sum[:6])
}

// CheckSecrets says what is wrong with a list of secrets.
func CheckSecrets(secrets [][]byte) error {
	if len(secrets) == 0 || len(secrets) > MaxSecrets {
		return fmt.Errorf("cluster secrets: %d, want 1 to %d", len(secrets), MaxSecrets)
	}
	for i, s := range secrets {
		if len(s) != SecretSize {
			return fmt.Errorf("cluster secret %d: %d bytes, want %d", i+1, len(s), SecretSize)
		}
		if i > 0 && bytes.Equal(s, secrets[0]) {
			return errors.New("cluster secrets: the same one twice")
		}
	}
	return nil
}

// SetSecrets replaces the secrets while the ring runs: the first encrypts what is
// sent from now on, all decrypt. What members that hold none of them send is
// dropped, and the other way round.
func (r *Ring) SetSecrets(secrets [][]byte) error {
	if err := CheckSecrets(secrets); err != nil {
		return err
	}
	r.secretsMu.Lock()
	defer r.secretsMu.Unlock()
	keys := r.keyring
	for _, s := range secrets {
		if err := keys.AddKey(s); err != nil {
			return fmt.Errorf("install the secret %s: %w", SecretID(s), err)
		}
	}
	if err := keys.UseKey(secrets[0]); err != nil {
		return fmt.Errorf("use the secret %s: %w", SecretID(secrets[0]), err)
	}
	// memberlist removes in place, under the eyes of who is decrypting; removing the
	// last one moves nothing. Kept ones go before: each is used for a moment.
	for _, s := range secrets[1:] {
		if len(keys.GetKeys()) == len(secrets) {
			break // nothing to remove
		}
		if err := errors.Join(keys.UseKey(s), keys.UseKey(secrets[0])); err != nil {
			return fmt.Errorf("order the secrets: %w", err)
		}
	}
	for have := keys.GetKeys(); len(have) > len(secrets); have = keys.GetKeys() {
		if err := keys.RemoveKey(have[len(have)-1]); err != nil {
			return fmt.Errorf("remove a secret: %w", err)
		}
	}
	return nil
}
