package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// writeFile replaces a file as administrators do.
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// newKey makes a key or ends the test.
func newKey(t *testing.T, name string) (key, line string) {
	t.Helper()
	key, line, err := NewKey(name)
	if err != nil {
		t.Fatal(err)
	}
	return key, line
}

// TestKeys checks who gets in: with the right key, a wrong one, none, and one that
// was taken away.
func TestKeys(t *testing.T) {
	alice, aliceLine := newKey(t, "alice")
	bob, bobLine := newKey(t, "bob")
	stranger, _ := newKey(t, "alice")
	file := filepath.Join(t.TempDir(), "keys")
	writeFile(t, file, "# clients\n\n"+aliceLine+"\n  "+bobLine+"\r\n")
	g := &toy{ready: "no route"}
	s, err := NewServer(Config{Listen: "127.0.0.1:0", KeysFile: file, Log: slog.New(slog.DiscardHandler)}, g, http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	defer s.listener.Close()
	ts := httptest.NewServer(s.Handler())
	defer ts.Close()

	const invalid = `{"error":{"message":"the API key is not valid here","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`
	const missing = `{"error":{"message":"an API key is needed: send the header Authorization: Bearer KEY","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`
	const malformed = `{"error":{"message":"the header Authorization is not of the form Bearer KEY","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`
	check := func(name, method, path, auth string, status int, want string) {
		t.Helper()
		body := ""
		if method == http.MethodPost {
			body = `{` + said("x") + `,"prompt":"x","session":"mine"}`
		}
		req, err := http.NewRequest(method, ts.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if auth != "" {
			req.Header.Set("Authorization", auth)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(string(text)); resp.StatusCode != status || want != "" && got != want {
			t.Errorf("%s: got %d %s, want %d %s", name, resp.StatusCode, got, status, want)
		}
		if challenge := resp.Header.Get("WWW-Authenticate"); (challenge == "Bearer") != (status == 401) {
			t.Errorf("%s: WWW-Authenticate %q with %d", name, challenge, status)
		}
	}
	check("right", "GET", "/v1/models", "Bearer "+alice, 200, "")
	check("scheme in lower case", "GET", "/v1/models", "bearer  "+bob, 200, "")
	check("wrong", "GET", "/v1/models", "Bearer "+stranger, 401, invalid)
	check("wrong for chat", "POST", chatPath, "Bearer "+stranger, 401, invalid)
	check("wrong for completions", "POST", "/v1/completions", "Bearer "+stranger, 401, invalid)
	check("half", "GET", "/v1/models/toy", "Bearer "+alice[:len(alice)-1], 401, invalid)
	check("longer", "GET", "/v1/models", "Bearer "+alice+"x", 401, invalid)
	check("the line", "GET", "/v1/models", "Bearer "+aliceLine, 401, invalid)
	check("the hash", "GET", "/v1/models", "Bearer "+strings.TrimPrefix(aliceLine, "alice:"), 401, invalid)
	check("missing", "GET", "/v1/models", "", 401, missing)
	check("missing for metrics", "GET", "/metrics", "", 401, missing)
	check("bare", "GET", "/v1/models", alice, 401, malformed)
	check("other scheme", "GET", "/v1/models", "Basic "+alice, 401, malformed)
	check("empty", "GET", "/v1/models", "Bearer ", 401, malformed)
	check("health", "GET", "/healthz", "", 200, `{"status":"ok"}`)
	check("readiness", "GET", "/readyz", "", 503, `{"ready":false,"reason":"no route"}`)
	if len(g.requests) > 0 {
		t.Errorf("%d requests got past the door", len(g.requests))
	}

	check("a session", "POST", chatPath, "Bearer "+alice, 200, "")
	check("the same name", "POST", "/v1/completions", "Bearer "+bob, 200, "")
	if len(g.requests) != 2 || g.requests[0].Session != "alice:mine" || g.requests[1].Session != "bob:mine" {
		t.Errorf("sessions are not apart: %+v", g.requests)
	} else if a, b := g.requests[0].Salt, g.requests[1].Salt; a == b || a == "" || b == "" {
		t.Errorf("the salts of two clients are %q and %q", a, b)
	}

	writeFile(t, file, aliceLine+"\n")
	check("before the reload", "GET", "/v1/models", "Bearer "+bob, 200, "")
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	check("revoked", "GET", "/v1/models", "Bearer "+bob, 401, invalid)
	check("kept", "GET", "/v1/models", "Bearer "+alice, 200, "")

	writeFile(t, file, "nonsense\n")
	if err := s.Reload(); err == nil || !strings.Contains(err.Error(), "line 1: want NAME:SHA256") {
		t.Errorf("reload of nonsense: %v", err)
	}
	check("after a bad reload", "GET", "/v1/models", "Bearer "+alice, 200, "")

	writeFile(t, file, "# nobody\n")
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	check("nobody is left", "GET", "/v1/models", "Bearer "+alice, 401, invalid)
}

// TestBadKeysFiles checks that each mistake is one line that names it, and never
// quotes what may be a key.
func TestBadKeysFiles(t *testing.T) {
	_, line := newKey(t, "a")
	const format = ": want NAME:SHA256, the hash in 64 hex digits: make a line with kevlard keygen --api NAME"
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", ": it has none: make one with kevlard keygen --api NAME and add its line"},
		{"comments", "# a\n\n#b", ": it has none: make one with kevlard keygen --api NAME and add its line"},
		{"key instead of hash", "a:kvl-secretsecret", ": line 1" + format},
		{"key alone", "#\nkvl-secretsecret\n", ": line 2" + format},
		{"short hash", line[:len(line)-2], ": line 1" + format},
		{"long hash", line + "00", ": line 1" + format},
		{"no name", line[1:], ": line 1" + format},
		{"odd name", "x y" + line[1:], ": line 1" + format},
		{"long name", strings.Repeat("x", 65) + line[1:], ": line 1" + format},
		{"odd limit", line + " rate=1 burst=2", ": line 1: after the hash come only in_flight=N and rate=N"},
		{"no limit", line + " in_flight=0", ": line 1: in_flight is not a number from 1 to 1000000"},
		{"twice", line + "\n" + line, ": line 2: the name a is taken by line 1: each key has its own"},
		{"too many", manyKeys(maxKeys+1, line[1:]), ": line 4097: more than 4096 keys"},
		{"too large", strings.Repeat("#", maxKeysFile+1), ": over 1048576 bytes are too many for keys"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "keys")
			writeFile(t, file, c.text)
			_, err := openKeyring(file)
			if want := "read API keys " + file + c.want; err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Error("the error quotes a key")
			}
		})
	}
	if _, err := openKeyring(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	file := filepath.Join(t.TempDir(), "keys")
	writeFile(t, file, line)
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := openKeyring(file); err == nil || err.Error() != "read API keys "+file+": mode 0666 lets others add keys: chmod go-w it" {
		t.Errorf("a file that anybody writes: %v", err)
	}
	for _, name := range []string{"", "a b", "a:b", "é", strings.Repeat("x", 65)} {
		if _, _, err := NewKey(name); err == nil {
			t.Errorf("NewKey accepts %q", name)
		}
	}
}

func manyKeys(n int, rest string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%d%s\n", i, rest)
	}
	return b.String()
}

// FuzzParseKeys checks that the decoder keeps its bounds.
func FuzzParseKeys(f *testing.F) {
	f.Add([]byte("a:" + strings.Repeat("0", 64)))
	f.Add([]byte("a:" + strings.Repeat("0", 64) + " in_flight=3 rate=100"))
	f.Add([]byte("# a\n\nb:x\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, err := parseKeys(data)
		if err != nil && keys != nil || len(keys) > maxKeys {
			t.Fatalf("%d keys, error %v", len(keys), err)
		}
		for _, k := range keys {
			if !isKeyName(k.name) || k.usage == nil || k.quota.inFlight < 0 || k.quota.inFlight > maxQuota || k.quota.rate < 0 || k.quota.rate > maxQuota {
				t.Fatalf("accepted the name %q", k.name)
			}
		}
	})
}

// TestListenNeedsKeys checks the exact refusal of addresses that others reach, and
// that keys lift it.
func TestListenNeedsKeys(t *testing.T) {
	_, err := NewServer(Config{Listen: "0.0.0.0:0"}, &toy{}, http.NotFoundHandler())
	want := "API listen address 0.0.0.0:0: other hosts reach it, which needs API keys: set [api] keys_file (kevlard keygen --api NAME makes a key), or listen on 127.0.0.1"
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	_, line := newKey(t, "a")
	file := filepath.Join(t.TempDir(), "keys")
	writeFile(t, file, line)
	var log strings.Builder
	s, err := NewServer(Config{Listen: "0.0.0.0:0", KeysFile: file, Log: slog.New(slog.NewTextHandler(&log, nil))}, &toy{}, http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	s.listener.Close()
	if !strings.Contains(log.String(), "prompts and API keys travel unencrypted") {
		t.Errorf("no warning: %q", log.String())
	}
}

// writeCertificate makes a self-signed certificate for 127.0.0.1 and returns a pool
// that trusts it.
func writeCertificate(t *testing.T, certFile, keyFile string, serial int64) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "kevlard"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, certFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	writeFile(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})))
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool
}

// TestTLS serves a stream over TLS, with both versions of HTTP, changes the
// certificate meanwhile, and keeps it when the next one is broken.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pool := writeCertificate(t, certFile, keyFile, 1)
	cfg := Config{Listen: "127.0.0.1:0", TLSCert: certFile, TLSKey: keyFile, Log: slog.New(slog.DiscardHandler)}
	s, err := NewServer(cfg, &toy{lessons: chatLessons()}, http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	s.certEvery = 10 * time.Millisecond
	ended := make(chan error, 1)
	ctx, cancel := contextOf(t)
	go func() { ended <- s.Run(ctx) }()
	chat := func(pool *x509.CertPool, h2 bool) (serial int64, err error) {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: h2}
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport}
		resp, err := client.Post("https://"+s.Addr()+chatPath, "application/json", strings.NewReader(`{"stream":true,`+said("plain")+`}`))
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return 0, err
		}
		if got, want := normalChat(t, string(text)), role+content("a")+content("b")+stop+done; got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		if (resp.ProtoMajor == 2) != h2 {
			t.Errorf("HTTP/%d", resp.ProtoMajor)
		}
		return resp.TLS.PeerCertificates[0].SerialNumber.Int64(), nil
	}
	for _, h2 := range []bool{false, true} {
		if serial, err := chat(pool, h2); serial != 1 || err != nil {
			t.Errorf("certificate %d, %v", serial, err)
		}
	}
	next := writeCertificate(t, certFile, keyFile, 2)
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := chat(pool, true); err == nil {
		t.Error("the old certificate is still served")
	}
	if serial, err := chat(next, true); serial != 2 || err != nil {
		t.Errorf("after the reload: certificate %d, %v", serial, err)
	}
	writeFile(t, keyFile, "broken")
	if err := s.Reload(); err == nil || !strings.HasPrefix(err.Error(), "read the API's certificate "+certFile+" and its key "+keyFile+": ") {
		t.Errorf("reload of a broken key: %v", err)
	}
	if serial, err := chat(next, true); serial != 2 || err != nil {
		t.Errorf("after a bad reload: certificate %d, %v", serial, err)
	}
	// Nobody tells it of the third one.
	third := writeCertificate(t, certFile, keyFile, 3)
	for serial := int64(0); serial != 3 && t.Context().Err() == nil; {
		serial, _ = chat(third, true) // the old one, until it has looked
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	for _, c := range []struct{ name, cert, key, want string }{
		{"certificate alone", certFile, "", "TLS for the API needs both [api] tls_cert and tls_key: give the other one too"},
		{"key alone", "", keyFile, "TLS for the API needs both [api] tls_cert and tls_key: give the other one too"},
		{"no file", dir + "/none", keyFile, "read the API's certificate " + dir + "/none and its key " + keyFile + ": open " + dir + "/none: no such file or directory: give a chain and its key in PEM"},
	} {
		_, err := NewServer(Config{Listen: "127.0.0.1:0", TLSCert: c.cert, TLSKey: c.key}, &toy{}, http.NotFoundHandler())
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
}

// TestTenantsShareNothing: the KV of a key is under a salt of its own, which is the same
// on every node; without keys there is one tenant.
func TestTenantsShareNothing(t *testing.T) {
	salts := map[string]bool{}
	for _, key := range []string{"kvl-a", "kvl-b"} {
		client := clientKey{name: "same-name", sum: sha256.Sum256([]byte(key))}
		salts[clientSalt(context.WithValue(t.Context(), clientContext{}, client))] = true
	}
	if len(salts) != 2 || salts[""] {
		t.Errorf("the salts of two keys are %v", salts)
	}
	if s := clientSalt(t.Context()); s != "" {
		t.Errorf("the salt without keys is %q", s)
	}
	client := context.WithValue(t.Context(), clientContext{}, clientKey{name: "a", sum: sha256.Sum256([]byte("kvl-a"))})
	apart, together := &Server{}, &Server{cfg: Config{SharePrefixes: true}}
	if a, b := apart.salt(client), together.salt(client); a != clientSalt(client) || b != "" {
		t.Errorf("by default %q, shared %q", a, b)
	}
}

// TestCertificateFollowsItsFiles: a renewed one is served without being told, a broken
// one is not and is told once, and so is one of which only the half has come yet.
func TestCertificateFollowsItsFiles(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, certFile, keyFile, 1)
	c, err := openCertificate(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_700_000_000, 0)
	touch := func() { // files that change within a tick of their clock, and keep their size
		now = now.Add(time.Second)
		for _, f := range []string{certFile, keyFile} {
			if err := os.Chtimes(f, now, now); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
	}
	look := func(step string, renewed, told bool, serial int64) {
		t.Helper()
		got, err := c.look()
		if got != renewed || (err != nil) != told || c.pair.Load().Leaf.SerialNumber.Int64() != serial {
			t.Errorf("%s: renewed %v, told %v, certificate %d", step, got, err, c.pair.Load().Leaf.SerialNumber)
		}
	}
	look("unchanged", false, false, 1)
	writeCertificate(t, certFile, keyFile, 2)
	touch()
	look("renewed", true, false, 2)
	look("and seen", false, false, 2)

	key, err := os.ReadFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, keyFile, "broken")
	touch()
	look("the first look at a broken key", false, false, 2)
	look("it is still broken", false, true, 2)
	look("that was told", false, false, 2)
	if err := os.Remove(keyFile); err != nil {
		t.Fatal(err)
	}
	look("the first look at no key", false, false, 2)
	look("there is still none", false, true, 2)
	look("that was told too", false, false, 2)
	writeFile(t, keyFile, string(key))
	touch()
	look("mended", true, false, 2)

	// The certificate comes before its key.
	other := t.TempDir()
	writeCertificate(t, filepath.Join(other, "cert.pem"), filepath.Join(other, "key.pem"), 3)
	move := func(name string) {
		t.Helper()
		if err := os.Rename(filepath.Join(other, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	move("cert.pem")
	look("half of it", false, false, 2)
	move("key.pem")
	look("all of it", true, false, 3)
	look("nothing is left to tell", false, false, 3)
}
