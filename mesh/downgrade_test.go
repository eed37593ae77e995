package mesh

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// rewound reads what a bufio.Reader has taken already too.
type rewound struct {
	net.Conn
	r io.Reader
}

func (c rewound) Read(b []byte) (int, error) { return c.r.Read(b) }

// TestOldTLS: who offers TLS 1.2 at most is refused by the acceptor; one that offers 1.3
// gets as far as being asked for its key, so that it is the version that was refused.
func TestOldTLS(t *testing.T) {
	a := start(t, testConfig(t, "a"))
	for version, want := range map[uint16]string{
		tls.VersionTLS12: "protocol version not supported",
		tls.VersionTLS13: "",
	} {
		conn, err := net.Dial("tcp", a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(conn)
		for _, p := range []string{"/multistream/1.0.0\n", "/tls/1.0.0\n"} {
			if _, err := conn.Write(append([]byte{byte(len(p))}, p...)); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 1+len(p))
			if _, err := io.ReadFull(lines, got); err != nil || string(got[1:]) != p {
				t.Fatalf("said %q, heard %q, %v", p, got, err)
			}
		}
		secure := tls.Client(rewound{conn, lines}, &tls.Config{InsecureSkipVerify: true, MaxVersion: version, NextProtos: []string{"libp2p", "/yamux/1.0.0"}})
		err = secure.HandshakeContext(t.Context())
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("TLS %s: %v, want %q", tls.VersionName(version), err, want)
		}
	}
}
