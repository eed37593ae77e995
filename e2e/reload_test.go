package e2e

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kevlard/kevlard/api"
)

// supervisor plays systemd's side of sd_notify.
type supervisor struct{ conn *net.UnixConn }

func newSupervisor(t *testing.T, s *single) supervisor {
	t.Helper()
	path := filepath.Join(s.dir, "models", "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	s.env = append(s.env, "NOTIFY_SOCKET="+path)
	return supervisor{conn}
}

// told returns the next notice.
func (v supervisor) told(t *testing.T) string {
	t.Helper()
	if err := v.conn.SetReadDeadline(time.Now().Add(readyWithin)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	n, err := v.conn.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

// reload sends SIGHUP and waits until systemd would know that it is done.
func (v supervisor) reload(t *testing.T, s *single) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if got := v.told(t); !regexp.MustCompile(`^RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]*$`).MatchString(got) {
		t.Errorf("the first notice is %q", got)
	}
	if got := v.told(t); got != "READY=1" {
		t.Errorf("the second notice is %q", got)
	}
}

// secureClient asks an HTTPS API whose certificate nobody has signed.
type secureClient struct{ url string }

// ask returns the status for a key, and the certificate that was shown.
func (c secureClient) ask(t *testing.T, key string) (status int, cert []byte) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url+"/v1/models", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode, resp.TLS.PeerCertificates[0].Raw
}

// TestReload is SIGHUP with a real process: keys, certificate and log level change,
// what needs a restart is named, and mistakes leave everything as it was.
func TestReload(t *testing.T) {
	s := newSingle(t, "reloaded")
	v := newSupervisor(t, s)
	var keys, lines []string
	for _, name := range []string{"alice", "bob"} {
		key, line, err := api.NewKey(name)
		if err != nil {
			t.Fatal(err)
		}
		keys, lines = append(keys, key), append(lines, line+"\n")
	}
	keysFile := writeFile(t, filepath.Join(s.dir, "keys"), lines[0], 0o600)
	cert, key := certificate(t, s.dir)
	s.conf["log"] = map[string]any{"level": "info"}
	s.conf["api"] = map[string]any{"listen": s.addr(0), "keys_file": keysFile, "tls_cert": cert, "tls_key": key}
	s.start(t)
	if got := v.told(t); got != "READY=1" {
		t.Errorf("the first notice is %q", got)
	}
	control := s.up(t)
	members, err := control.Members(t.Context())
	if err != nil || len(members.Nodes) != 1 || members.Nodes[0].API != "https://"+s.addr(0) {
		t.Errorf("members %+v, %v: want the API as https://%s", members.Nodes, err, s.addr(0))
	}
	client := secureClient{"https://" + s.addr(0)}
	expect := func(when string, alice, bob int) (shown []byte) {
		t.Helper()
		for i, want := range []int{alice, bob} {
			var got int
			if got, shown = client.ask(t, keys[i]); got != want {
				t.Errorf("%s: key %d gets %d, want %d", when, i+1, got, want)
			}
		}
		return shown
	}
	before := expect("at first", 200, 401)
	says := func(text string) bool { return strings.Contains(s.stderr.String(), text) }
	// The log comes through a pipe of its own, after the notice perhaps.
	logs := func(texts ...string) {
		t.Helper()
		eventually(t, readyWithin, func() error {
			for _, text := range texts {
				if !says(text) {
					return errors.New("the log lacks " + text)
				}
			}
			return nil
		})
	}
	if says("level=DEBUG") {
		t.Error("it logs at debug level")
	}

	writeFile(t, keysFile, lines[1], 0o600)
	certificate(t, s.dir)
	s.set("log", "level", "debug")
	s.set("ring", "profile", "wan")
	s.set("api", "max_queue", 7)
	s.config(t)
	v.reload(t, s)
	after := expect("after the reload", 401, 200)
	if bytes.Equal(before, after) {
		t.Error("it still shows the old certificate")
	}
	logs(
		`msg="configuration reloaded" log.level=debug`,
		`level=WARN msg="changed value needs a restart" key=ring.profile "in effect"=lan configured=wan`,
		`level=WARN msg="changed value needs a restart" key=api.max_queue "in effect"=256 configured=7`,
	)
	if n := strings.Count(s.stderr.String(), "needs a restart"); n != 2 {
		t.Errorf("%d values are said to need a restart, want 2", n)
	}
	raw(t, s.addr(0), []byte("this is no TLS\r\n\r\n"), silence)
	logs("level=DEBUG")

	writeFile(t, keysFile, "alice:"+keys[0]+"\n", 0o600)
	if err := os.Rename(cert, cert+".old"); err != nil {
		t.Fatal(err)
	}
	text := writeFile(t, filepath.Join(s.dir, "kevlard.toml"), "[node]\nrole = 'boss'\n[log]\nlevle = 'error'\n", 0o600)
	v.reload(t, s)
	if still := expect("after mistakes", 401, 200); !bytes.Equal(after, still) {
		t.Error("the certificate has changed")
	}
	logs(
		`msg="not reloaded: the old one stays in effect" error="read API keys `+keysFile+": line 1: want NAME:SHA256",
		`msg="not reloaded: the old one stays in effect" error="read the API's certificate `+cert,
		`msg="mistake in the configuration" problem="`+text+":2: node.role",
		`msg="mistake in the configuration" problem="`+text+":4: log.levle: unknown key (did you mean log.level?)",
		`msg="configuration not reloaded: the old one stays in effect" error="2 mistakes"`,
	)
	if says(keys[0]) {
		t.Error("the log has a key")
	}

	remove(t, text)
	v.reload(t, s)
	logs("read configuration: open " + text)
	expect("without a configuration", 401, 200)
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := s.await(t, time.Minute); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got := v.told(t); got != "STOPPING=1" {
		t.Errorf("the last notice is %q", got)
	}
}
