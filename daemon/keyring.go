package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/kevlard/kevlard/membership"
)

// keyringFile is the name of the file with the secrets in the data directory. It
// exists from the first change on.
const keyringFile = "keyring.json"

// maxKeyringFile is the most bytes of it; a larger one is something else.
const maxKeyringFile = 4 << 10

// errKeyring marks what the keyring refuses to do.
var errKeyring = errors.New("refused")

// keyring is the cluster secrets that a node holds: the first is in use.
type keyring [][]byte

// ids names the secrets, the one in use first.
func (k keyring) ids() []string {
	out := make([]string, len(k))
	for i, s := range k {
		out[i] = membership.SecretID(s)
	}
	return out
}

// index returns the place of a secret, -1 if it is not there.
func (k keyring) index(id string) int { return slices.Index(k.ids(), id) }

// add returns the keyring with a further secret, which is accepted and not used.
func (k keyring) add(secret []byte) (keyring, error) {
	id := membership.SecretID(secret)
	switch {
	case k.index(id) >= 0:
		return k, nil
	case len(k) >= membership.MaxSecrets:
		return k, fmt.Errorf("%w: it holds %d secrets already, %s in use and %s: remove that one first", errKeyring, len(k), k.ids()[0], k.ids()[1])
	}
	next := append(slices.Clone(k), secret)
	return next, membership.CheckSecrets(next)
}

// use returns the keyring with the named secret in use.
func (k keyring) use(id string) (keyring, error) {
	i := k.index(id)
	if i < 0 {
		return k, fmt.Errorf("%w: it does not hold the secret %s: add it first", errKeyring, id)
	}
	next := slices.Clone(k)
	next[0], next[i] = next[i], next[0]
	return next, nil
}

// remove returns the keyring without the named secret.
func (k keyring) remove(id string) (keyring, error) {
	switch k.index(id) {
	case -1:
		return k, nil
	case 0:
		return k, fmt.Errorf("%w: the secret %s is in use: use another one first", errKeyring, id)
	}
	return slices.DeleteFunc(slices.Clone(k), func(s []byte) bool { return membership.SecretID(s) == id }), nil
}

// keyringDoc is the file. It remembers which secret the configuration named, so
// that another one there is the operator's word and counts.
type keyringDoc struct {
	Version    int      `json:"version"`
	Configured string   `json:"configured"` // ID of the secret in secret_file when this was written
	Secrets    [][]byte `json:"secrets"`
}

// Secrets returns the cluster secrets that a node with this data directory holds,
// the one in use first, when its configuration names configured: those that
// `kevlard keys` left there, unless the configuration was changed since.
func Secrets(dir string, configured []byte) ([][]byte, error) {
	if dir == "" {
		return [][]byte{configured}, nil
	}
	path := filepath.Join(dir, keyringFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return [][]byte{configured}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the cluster secrets: %w", err)
	}
	var doc keyringDoc
	if len(b) > maxKeyringFile {
		err = fmt.Errorf("over %d bytes", maxKeyringFile)
	} else if err = json.Unmarshal(b, &doc); err == nil && doc.Version != 1 {
		err = fmt.Errorf("version %d, want 1", doc.Version)
	}
	if err == nil {
		err = membership.CheckSecrets(doc.Secrets)
	}
	if err != nil {
		return nil, fmt.Errorf("read the cluster secrets %s: %w: put the ring's secret in [ring] secret_file and remove this file", path, err)
	}
	switch {
	case doc.Configured == membership.SecretID(configured), bytes.Equal(doc.Secrets[0], configured):
		return doc.Secrets, nil
	}
	return [][]byte{configured}, nil
}

// saveKeyring replaces the file so that a crash leaves the old or the new one; configured
// is the ID of the secret in secret_file.
func saveKeyring(dir, configured string, k keyring) (err error) {
	b, err := json.MarshalIndent(keyringDoc{Version: 1, Configured: configured, Secrets: k}, "", " ")
	if err != nil {
		return fmt.Errorf("encode the cluster secrets: %w", err)
	}
	f, err := os.CreateTemp(dir, keyringFile+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("write the cluster secrets: %w", err)
	}
	_, err = f.Write(append(b, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, keyringFile))
	}
	if err != nil {
		return fmt.Errorf("write the cluster secrets: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}
