package main

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
)

// maxSecretFile is the most bytes of a secret file; a larger one is something else.
const maxSecretFile = 4 << 10

// readSecret reads a cluster secret: 32 bytes in base64 or hex.
func readSecret(path string) ([]byte, error) {
	if path == "" {
		return nil, usageError("ring.secret_file is not set: every node of a ring needs the same secret: make one with kevlard keygen --out FILE, copy it to each node and name it there")
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, usageError("read the cluster secret: %w: make one with kevlard keygen --out %s, or copy that of the ring", err, path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, usageError("read the cluster secret %s: mode %04o lets others read it: chmod 600 it", path, info.Mode().Perm())
	}
	if info.Size() > maxSecretFile {
		return nil, usageError("read the cluster secret %s: %d bytes are too many for a secret: make one with kevlard keygen", path, info.Size())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, usageError("read the cluster secret: %w: it must belong to the user that runs kevlard (chown it, and leave its mode at 0600)", err)
	}
	secret, err := parseSecret(string(data))
	if err != nil {
		return nil, usageError("read the cluster secret %s: %w: make one with kevlard keygen", path, err)
	}
	return secret, nil
}

// parseSecret accepts what keygen writes, and hex. It must not quote its input.
func parseSecret(text string) ([]byte, error) {
	text = strings.TrimSpace(text)
	decoders := []func(string) ([]byte, error){
		hex.DecodeString, base64.StdEncoding.DecodeString, base64.RawStdEncoding.DecodeString, base64.RawURLEncoding.DecodeString,
	}
	for _, decode := range decoders {
		if secret, err := decode(text); err == nil && len(secret) == secretBytes {
			return secret, nil
		}
	}
	return nil, errors.New("it does not hold " + fmt.Sprint(secretBytes) + " bytes in base64 or hex")
}
