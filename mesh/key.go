package mesh

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/libp2p/go-libp2p/core/crypto"
)

// keyFile is the node key inside the data directory, in libp2p's protobuf form.
const keyFile = "node.key"

// LoadOrCreateKey reads the ed25519 node key from dir/node.key. If there is none
// it makes one and stores it with mode 0600, durably, before returning it. A key
// that others can read, that does not parse or that is of another type is an
// error, never replaced: peers know the node by it.
func LoadOrCreateKey(dir string) (crypto.PrivKey, error) {
	path := filepath.Join(dir, keyFile)
	key, err := loadKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	key, _, err = crypto.GenerateEd25519Key(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make node key: %w", err)
	}
	if err := storeKey(dir, path, key); err != nil {
		return nil, fmt.Errorf("store node key %s: %w: [node] data_dir must be writable and have room", path, err)
	}
	// What the file says counts, should another process have been faster.
	return loadKey(path)
}

// ownership says what to do about a key of another user: kevlard was once run as root, or
// the directory is of another host.
func ownership(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return ": [node] data_dir and all in it must belong to the user that runs kevlard (chown -R)"
	}
	return ""
}

func loadKey(path string) (crypto.PrivKey, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open node key: %w%s", err, ownership(err))
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("node key %s has mode %04o and must be 0600: chmod 600 it, or remove it to become a new peer", path, mode)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read node key: %w%s", err, ownership(err))
	}
	key, err := crypto.UnmarshalPrivateKey(raw)
	if err != nil {
		return nil, fmt.Errorf("node key %s: %w: restore it from a backup, or remove it to become a new peer", path, err)
	}
	if key.Type() != crypto.Ed25519 {
		return nil, fmt.Errorf("node key %s is of type %s, want Ed25519: remove it to become a new peer", path, key.Type())
	}
	return key, nil
}

// storeKey writes key beside path and links it into place, which fails softly
// when another process did so first.
func storeKey(dir, path string, key crypto.PrivKey) error {
	raw, err := crypto.MarshalPrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	temp, err := os.CreateTemp(dir, keyFile+".*") // created with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	_, err = temp.Write(raw)
	if err := errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return err
	}
	if err := os.Link(temp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(dir)
}

// syncDir makes a new directory entry durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
