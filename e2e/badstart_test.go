package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// occupy holds an address until the test ends.
func occupy(t *testing.T, network, addr string) {
	t.Helper()
	if network == "udp" {
		c, err := net.ListenPacket(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

func writeFile(t *testing.T, path, text string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// certificate writes a self-signed certificate for singleIP and its key.
func certificate(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.ParseIP(singleIP)}}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert = writeFile(t, filepath.Join(dir, "c.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), 0o600)
	key = writeFile(t, filepath.Join(dir, "k.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})), 0o600)
	return cert, key
}

// onTmpfs runs the agent where its data directory is a tmpfs that only it sees,
// after prepare did something to it ($D), and lists the directory when it has ended.
func (s *single) onTmpfs(t *testing.T, options, prepare string) {
	t.Helper()
	needRoot(t, "it mounts a file system")
	data := s.conf["node"]["data_dir"].(string)
	if err := os.MkdirAll(data, 0o700); err != nil {
		t.Fatal(err)
	}
	s.attr.Unshareflags = syscall.CLONE_NEWNS
	s.env = append(s.env, "D="+data)
	s.wrap = []string{"sh", "-c", `mount -t tmpfs -o ` + options + ` tmpfs "$D" || exit 99
` + prepare + `
"$@"
code=$?
find "$D" ! -type d
exit $code`, "sh"}
}

// TestBadStart starts real agents with one mistake each: the right exit code, one
// message that names what is wrong and what to do, and nothing left behind.
func TestBadStart(t *testing.T) {
	const inUse = "address already in use"
	for _, c := range []struct {
		name  string
		code  int
		spoil func(t *testing.T, s *single)
		want  []string // in the message; DIR is the agent's directory, API, GOSSIP and MESH its addresses
	}{
		{"API port taken", 1, func(t *testing.T, s *single) { occupy(t, "tcp", s.addr(0)) }, []string{"API", inUse, "[api] listen"}},
		{"gossip TCP port taken", 1, func(t *testing.T, s *single) { occupy(t, "tcp", s.addr(1)) }, []string{"GOSSIP", inUse, "[ring] bind"}},
		{"gossip UDP port taken", 1, func(t *testing.T, s *single) { occupy(t, "udp", s.addr(1)) }, []string{"GOSSIP", inUse, "[ring] bind"}},
		{"mesh port taken", 1, func(t *testing.T, s *single) { occupy(t, "tcp", s.addr(2)) }, []string{"MESH", inUse, "[mesh] bind"}},
		{"mesh on gossip's port", 2, func(_ *testing.T, s *single) { s.set("mesh", "bind", s.addr(1)) }, []string{"mesh.bind: GOSSIP is taken by ring.bind", "give each its own port"}},
		{"bulk on the API's port", 2, func(_ *testing.T, s *single) { s.set("mesh", "bulk_port", s.base) }, []string{"api.listen: API is taken by mesh.bulk_port", "give each its own port"}},
		{"foreign gossip address", 1, func(_ *testing.T, s *single) { s.set("ring", "bind", "192.0.2.7:7946") }, []string{"192.0.2.7", "set [ring] bind to an address of this host"}},
		{"foreign mesh address", 1, func(_ *testing.T, s *single) { s.set("mesh", "bind", "192.0.2.7:7947") }, []string{"192.0.2.7", "[mesh] bind"}},
		{"foreign API address", 1, func(t *testing.T, s *single) {
			s.set("api", "listen", "192.0.2.7:8080")
			s.set("api", "keys_file", writeFile(t, s.dir+"/keys", "a:"+strings.Repeat("ab", 32)+"\n", 0o600))
		}, []string{"192.0.2.7", "[api] listen"}},
		{"advertise loopback", 2, func(_ *testing.T, s *single) { s.set("ring", "dev", false) }, []string{"ring.advertise", "loopback"}},
		{"advertise no interface", 1, func(_ *testing.T, s *single) { s.set("ring", "advertise", "eth77") }, []string{`"eth77"`, "[ring] advertise", "127.0.0.1 (lo)"}},
		{"advertise everywhere", 2, func(_ *testing.T, s *single) { s.set("ring", "advertise", "0.0.0.0") }, []string{"ring.advertise", "0.0.0.0"}},
		{"fabric link-local", 2, func(_ *testing.T, s *single) { s.set("mesh", "fabric", "169.254.1.1") }, []string{"[mesh] fabric", "link-local"}},
		{"socket's directory missing", 1, func(_ *testing.T, s *single) { s.set("control", "socket", s.dir+"/none/k.sock") }, []string{"control socket DIR/none/k.sock", "does not exist: make it, or choose another path"}},
		{"socket path too long", 1, func(t *testing.T, s *single) {
			deep := filepath.Dir(writeFile(t, s.dir+"/models/"+strings.Repeat("d", 100)+"/x", "", 0o600))
			s.set("control", "socket", deep+"/k.sock")
		}, []string{"control socket", "the kernel takes 107: choose a shorter one"}},
		{"a file in the socket's place", 1, func(t *testing.T, s *single) { writeFile(t, s.socket(), "precious", 0o600) }, []string{"control socket DIR/k.sock", "not a socket"}},
		{"data directory is a file", 1, func(t *testing.T, s *single) { writeFile(t, s.dir+"/data", "precious", 0o600) }, []string{"DIR/data", "[node] data_dir"}},
		{"data directory cannot be written", 1, func(t *testing.T, s *single) { s.onTmpfs(t, "size=1m", `mount -o remount,ro "$D"`) }, []string{"DIR/data/node.key", "read-only file system", "[node] data_dir"}},
		{"disk full", 1, func(t *testing.T, s *single) { s.onTmpfs(t, "size=64k", `head -c 1M /dev/zero 2>/dev/null >"$D/fill"`) }, []string{"DIR/data/node.key", "no space left on device", "[node] data_dir"}},
		{"node key of another program", 1, func(t *testing.T, s *single) { writeFile(t, s.dir+"/data/node.key", "junk", 0o600) }, []string{"DIR/data/node.key", "restore it from a backup, or remove it"}},
		{"empty node key", 1, func(t *testing.T, s *single) { writeFile(t, s.dir+"/data/node.key", "", 0o600) }, []string{"DIR/data/node.key", "restore it from a backup, or remove it"}},
		{"node key for all to read", 1, func(t *testing.T, s *single) { writeFile(t, s.dir+"/data/node.key", "junk", 0o644) }, []string{"DIR/data/node.key has mode 0644", "chmod 600"}},
		{"no secret", 2, func(_ *testing.T, s *single) { s.set("ring", "secret_file", s.dir+"/nope") }, []string{"DIR/nope", "kevlard keygen"}},
		{"secret for all to read", 2, func(t *testing.T, s *single) {
			writeFile(t, s.dir+"/secret", "x", 0o644)
			chmod(t, s.dir+"/secret", 0o644)
		}, []string{"DIR/secret", "mode 0644", "chmod 600"}},
		{"secret too short", 2, func(t *testing.T, s *single) { writeFile(t, s.dir+"/secret", "00ff", 0o600) }, []string{"DIR/secret", "32 bytes"}},
		{"no API keys", 2, func(_ *testing.T, s *single) { s.set("api", "keys_file", s.dir+"/nope") }, []string{"DIR/nope", "kevlard keygen --api"}},
		{"no API keys, and gossip's port taken", 2, func(t *testing.T, s *single) { // the keys are looked at before the ring can see the node
			occupy(t, "tcp", s.addr(1))
			s.set("api", "keys_file", s.dir+"/nope")
		}, []string{"DIR/nope", "kevlard keygen --api"}},
		{"a key where its hash belongs", 2, func(t *testing.T, s *single) {
			s.set("api", "keys_file", writeFile(t, s.dir+"/keys", "alice:kvl-SECRETSECRET\n", 0o600))
		}, []string{"DIR/keys", "line 1", "kevlard keygen --api"}},
		{"open API without keys", 2, func(_ *testing.T, s *single) { s.set("api", "listen", "0.0.0.0:8099") }, []string{"api.listen", "api.keys_file"}},
		{"no certificate", 2, func(_ *testing.T, s *single) {
			s.set("api", "tls_cert", s.dir+"/c")
			s.set("api", "tls_key", s.dir+"/k")
		}, []string{"DIR/c", "PEM"}},
		{"certificate of another key", 2, func(t *testing.T, s *single) {
			cert, _ := certificate(t, s.dir+"/models/1")
			_, key := certificate(t, s.dir+"/models/2")
			s.set("api", "tls_cert", cert)
			s.set("api", "tls_key", key)
		}, []string{"certificate", "DIR/models/2/k.pem"}},
		{"model file missing", 1, func(t *testing.T, s *single) { s.holds(t, 0, 8, nil); remove(t, s.dir+"/models/m.gguf") }, []string{"models.assign entry 1", "DIR/models/m.gguf", "no such file"}},
		{"model name unknown", 1, func(t *testing.T, s *single) {
			s.holds(t, 0, 8, nil)
			s.set("models", "assign", []map[string]any{{"model": "fairly", "lo": 0, "hi": 8}})
		}, []string{"models.assign entry 1", `"fairly"`, "fairy"}},
		{"layers beyond the model", 2, func(t *testing.T, s *single) { s.holds(t, 4, 9, nil) }, []string{"models.assign entry 1", "[4,9)", "8"}},
		{"not a model", 1, func(t *testing.T, s *single) {
			s.holds(t, 0, 8, func([]byte) []byte { return []byte("%PDF-1.4 and so on, long enough for a header") })
		}, []string{"models.assign entry 1", "DIR/models/m.gguf", "magic"}},
		{"empty model", 1, func(t *testing.T, s *single) { s.holds(t, 0, 8, func([]byte) []byte { return nil }) }, []string{"models.assign entry 1", "DIR/models/m.gguf"}},
		{"model cut in its keys", 1, func(t *testing.T, s *single) { s.holds(t, 0, 8, func(b []byte) []byte { return b[:200] }) }, []string{"models.assign entry 1", "DIR/models/m.gguf", "key"}},
		{"model cut in its weights", 1, func(t *testing.T, s *single) { s.holds(t, 0, 8, func(b []byte) []byte { return b[:len(b)-4096] }) }, []string{"models.assign entry 1", "DIR/models/m.gguf", "tensor"}},
		{"unknown architecture", 1, func(t *testing.T, s *single) {
			s.holds(t, 0, 8, func(b []byte) []byte { return bytes.Replace(b, []byte("llama"), []byte("mamba"), 1) })
		}, []string{"models.assign entry 1", "DIR/models/m.gguf", `architecture "mamba" is not supported`, "qwen3"}},
		{"gateway with stages", 2, func(t *testing.T, s *single) { s.holds(t, 0, 8, nil); s.set("node", "role", "gateway") }, []string{"models.assign", "gateway"}},
		{"join without port", 2, func(_ *testing.T, s *single) { s.set("ring", "join", []string{"10.0.0.1"}) }, []string{"ring.join", "entry 1", "HOST:PORT"}},
		{"misspelled key", 2, func(_ *testing.T, s *single) { s.set("ring", "adverties", "x") }, []string{"kevlard.toml:", "ring.adverties", "did you mean ring.advertise?"}},
		{"name with a space", 2, func(_ *testing.T, s *single) { s.set("node", "name", "a b") }, []string{"node.name", `"a b"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSingle(t, "bad")
			c.spoil(t, s)
			s.start(t)
			code := s.await(t, time.Minute)
			message := lastWords(t, s.stderr.String())
			words := strings.NewReplacer("DIR", s.dir, "API", s.addr(0), "GOSSIP", s.addr(1), "MESH", s.addr(2))
			for _, w := range c.want {
				if w = words.Replace(w); !strings.Contains(message, w) {
					t.Errorf("the message lacks %q: %s", w, message)
				}
			}
			if code != c.code {
				t.Errorf("exit code %d, want %d: %s", code, c.code, message)
			}
			for _, secret := range []string{"SECRETSECRET", "00ff", "precious"} {
				if strings.Contains(s.stderr.String(), secret) {
					t.Errorf("it tells what is in a file (%s):\n%s", secret, s.stderr.String())
				}
			}
			if got := strings.Fields(s.stdout.String()); len(got) > 0 && !(len(got) == 1 && filepath.Base(got[0]) == "fill") {
				t.Errorf("left on the data directory's file system: %v", got)
			}
			for _, left := range s.leftovers(t) {
				if !strings.Contains(left, inUse) { // by the test itself
					t.Errorf("left behind: %s", left)
				}
			}
			for path, want := range map[string]string{s.dir + "/k.sock": "precious", s.dir + "/data": "precious"} {
				if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
					continue
				}
				if text, err := os.ReadFile(path); err != nil || string(text) != want {
					t.Errorf("%s now holds %q, %v", path, text, err)
				}
			}
		})
	}
}

var anyMessage = regexp.MustCompile(`(?m)^kevlard: (.*)$`)

// lastWords returns the one message of an agent that gave up; what comes before it
// may only be warnings.
func lastWords(t *testing.T, stderr string) string {
	t.Helper()
	var out []string
	for _, m := range anyMessage.FindAllStringSubmatch(stderr, -1) {
		if !strings.HasPrefix(m[1], "warning: ") {
			out = append(out, m[1])
		}
	}
	if len(out) != 1 || !strings.HasSuffix(stderr, "kevlard: "+out[0]+"\n") {
		t.Fatalf("%d messages, want one, as the last line:\n%s", len(out), stderr)
	}
	if strings.Contains(stderr, "msg=start") {
		t.Errorf("it says that it started:\n%s", stderr)
	}
	if strings.Contains(stderr, "goroutine ") || strings.Contains(stderr, "panic") {
		t.Errorf("it crashed:\n%s", stderr)
	}
	return out[0]
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
