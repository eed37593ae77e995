package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// keyPrefix begins every key that NewKey makes, so that scanners for leaked
// secrets can find them.
const keyPrefix = "kvl-"

// NewKey makes an API key for the client called name, and the line that lets it in
// when it is added to a keys file. The line does not give the key away.
func NewKey(name string) (key, line string, err error) {
	if !isKeyName(name) {
		return "", "", fmt.Errorf("%.80q cannot name a key: want 1 to %d letters, digits, '.', '_' or '-'", name, maxKeyName)
	}
	secret := make([]byte, sha256.Size)
	rand.Read(secret) // never fails: crypto/rand ends the program instead
	key = keyPrefix + base64.RawURLEncoding.EncodeToString(secret)
	sum := sha256.Sum256([]byte(key))
	return key, name + ":" + hex.EncodeToString(sum[:]), nil
}

func isKeyName(name string) bool { return isPlain(name, maxKeyName) }

// keyring holds the keys of a file. Keys are long and random, so that a plain hash
// keeps them.
type keyring struct {
	path string
	keys atomic.Pointer[[]clientKey]
}

// clientKey is what is known of a key.
type clientKey struct {
	name  string
	sum   [sha256.Size]byte
	quota quota
	usage *allowance // the same for as long as the key is in the file
}

// openKeyring reads the keys file at path.
func openKeyring(path string) (*keyring, error) {
	k := &keyring{path: path}
	if err := k.reload(); err != nil {
		return nil, err
	}
	if len(*k.keys.Load()) == 0 {
		return nil, fmt.Errorf("read API keys %s: it has none: make one with kevlard keygen --api NAME and add its line", path)
	}
	return k, nil
}

// reload reads the file again. On error the keys stay as they are. A file without
// keys lets nobody in.
func (k *keyring) reload() error {
	f, err := os.Open(k.path)
	if err != nil {
		return fmt.Errorf("read API keys: %w: make one with kevlard keygen --api NAME and put its line there", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("read API keys: %w", err)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("read API keys %s: mode %04o lets others add keys: chmod go-w it", k.path, info.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKeysFile+1))
	if err != nil {
		return fmt.Errorf("read API keys: %w", err)
	}
	keys, err := parseKeys(data)
	if err != nil {
		return fmt.Errorf("read API keys %s: %w", k.path, err)
	}
	if old := k.keys.Load(); old != nil {
		known := map[[sha256.Size]byte]*allowance{}
		for _, o := range *old {
			known[o.sum] = o.usage
		}
		for i := range keys {
			keys[i].usage = cmp.Or(known[keys[i].sum], keys[i].usage)
		}
	}
	k.keys.Store(&keys)
	return nil
}

// parseKeys reads lines of NAME:SHA256 [in_flight=N] [rate=N]. Errors do not quote lines: one may hold a
// key by mistake.
func parseKeys(data []byte) ([]clientKey, error) {
	if len(data) > maxKeysFile {
		return nil, fmt.Errorf("over %d bytes are too many for keys", maxKeysFile)
	}
	var keys []clientKey
	seen := map[string]int{}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		text := strings.TrimSpace(string(line))
		if text == "" || text[0] == '#' {
			continue
		}
		words := strings.Fields(text)
		name, hexa, _ := strings.Cut(words[0], ":")
		key := clientKey{name: name, usage: new(allowance)}
		sum, err := hex.DecodeString(hexa)
		if !isKeyName(name) || err != nil || len(sum) != len(key.sum) {
			return nil, fmt.Errorf("line %d: want NAME:SHA256, the hash in 64 hex digits: make a line with kevlard keygen --api NAME", number)
		}
		if key.quota, err = parseQuota(words[1:]); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if first, ok := seen[name]; ok {
			return nil, fmt.Errorf("line %d: the name %s is taken by line %d: each key has its own", number, name, first)
		}
		if len(keys) == maxKeys {
			return nil, fmt.Errorf("line %d: more than %d keys", number, maxKeys)
		}
		seen[name] = number
		copy(key.sum[:], sum)
		keys = append(keys, key)
	}
	return keys, nil
}

// find returns the client that has the key. How long it takes depends
// neither on the key nor on which one it is.
func (k *keyring) find(key string) (client clientKey, ok bool) {
	sum := sha256.Sum256([]byte(key))
	keys := *k.keys.Load()
	at := -1
	for i := range keys {
		at = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], keys[i].sum[:]), i, at)
	}
	if at < 0 {
		return clientKey{}, false
	}
	return keys[at], true
}

// clientContext is the key of the client's clientKey in a request's context.
type clientContext struct{}

// clientName returns the name of the client's key, or "" where no keys are needed.
func clientName(ctx context.Context) string {
	client, _ := ctx.Value(clientContext{}).(clientKey)
	return client.name
}

// clientSalt returns what keeps the KV of a client apart from that of others: a hash of
// its key, because a name may mean another client on another node. It is "" where no
// keys are needed: all are one tenant then.
func clientSalt(ctx context.Context) string {
	client, ok := ctx.Value(clientContext{}).(clientKey)
	if !ok {
		return ""
	}
	return "key:" + hex.EncodeToString(client.sum[:])
}

// limited takes a place under the limits of the client's key, or answers 429. The place
// is given back with end.
func (s *Server) limited(w http.ResponseWriter, r *http.Request) (end func(), ok bool) {
	client, ok := r.Context().Value(clientContext{}).(clientKey)
	if !ok {
		return func() {}, true
	}
	why, wait := client.usage.begin(time.Now(), client.quota, r.Header.Get(lastEventHeader) != "")
	if why == "" {
		return client.usage.end, true
	}
	if s.cfg.Shed != nil {
		s.cfg.Shed("key_limit")
	}
	e := newError(http.StatusTooManyRequests, "rate_limit_exceeded", "%s: try again in %v", why, wait.Round(time.Second/10))
	e.retry = wait
	writeError(w, e)
	return nil, false
}

// salt returns under which salt the KV of a client lies: its own, or that of all.
func (s *Server) salt(ctx context.Context) string {
	if s.cfg.SharePrefixes {
		return ""
	}
	return clientSalt(ctx)
}

// keyed lets only requests with a key through, if there are keys.
func (s *Server) keyed(next http.Handler) http.Handler {
	if s.keys == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, err := bearer(r.Header)
		if err == nil {
			if client, ok := s.keys.find(key); ok {
				next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), clientContext{}, client)))
				return
			}
			err = errors.New("the API key is not valid here")
		}
		w.Header().Set("WWW-Authenticate", "Bearer")
		writeError(w, newError(http.StatusUnauthorized, "invalid_api_key", "%v", err))
	})
}

// bearer returns the key that a request carries.
func bearer(h http.Header) (string, error) {
	value := h.Get("Authorization")
	if value == "" {
		return "", errors.New("an API key is needed: send the header Authorization: Bearer KEY")
	}
	scheme, key, _ := strings.Cut(value, " ")
	if key = strings.TrimSpace(key); !strings.EqualFold(scheme, "Bearer") || key == "" {
		return "", errors.New("the header Authorization is not of the form Bearer KEY")
	}
	return key, nil
}
