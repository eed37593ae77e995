package sdk

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"syscall"
)

// socket is an HTTP client that trusts nothing: it asks the kernel for one byte at a
// time and checks every byte of the framing.
type socket struct {
	conn net.Conn
	one  [1]byte
	left int  // bytes left of the current chunk; -1: the body has ended
	any  bool // a chunk was read before
}

// dial connects to the API. With narrow the kernel takes no more than it must on the
// client's side, so that the server soon waits for a slow reader.
func dial(ctx context.Context, url string, narrow bool) (*socket, error) {
	var d net.Dialer
	if narrow {
		d.Control = func(_, _ string, c syscall.RawConn) error {
			var err error
			if ctlErr := c.Control(func(fd uintptr) {
				err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 1)
			}); ctlErr != nil {
				return ctlErr
			}
			return err
		}
	}
	conn, err := d.DialContext(ctx, "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		return nil, err
	}
	if at, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(at); err != nil {
			return nil, err
		}
	}
	return &socket{conn: conn}, nil
}

// send writes a request with a JSON body, or without one.
func (s *socket) send(method, path, body string) error {
	_, err := fmt.Fprintf(s.conn, "%s %s HTTP/1.1\r\nHost: mesh\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
	return err
}

// next reads one byte.
func (s *socket) next() (byte, error) {
	n, err := s.conn.Read(s.one[:])
	if n == 1 {
		return s.one[0], nil
	}
	return 0, err
}

// line reads to CRLF, and refuses either of the two alone.
func (s *socket) line() (string, error) {
	var line []byte
	for {
		b, err := s.next()
		switch {
		case err != nil:
			return "", fmt.Errorf("after %q: %w", line, err)
		case b == '\n':
			return "", fmt.Errorf("a bare line feed after %q", line)
		case b != '\r':
			if line = append(line, b); len(line) > 4096 {
				return "", fmt.Errorf("no end of the line that begins with %q", line[:80])
			}
			continue
		}
		if b, err = s.next(); err != nil || b != '\n' {
			return "", fmt.Errorf("%q instead of a line feed after %q: %w", b, line, err)
		}
		return string(line), nil
	}
}

// head reads the status and the header.
func (s *socket) head() (status int, header http.Header, err error) {
	first, err := s.line()
	if err != nil {
		return 0, nil, err
	}
	if _, err := fmt.Sscanf(first, "HTTP/1.1 %d ", &status); err != nil {
		return 0, nil, fmt.Errorf("status line %q: %w", first, err)
	}
	header = http.Header{}
	for {
		line, err := s.line()
		if err != nil {
			return 0, nil, err
		}
		if line == "" {
			s.left, s.any = 0, false
			return status, header, nil
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" || strings.TrimSpace(name) != name {
			return 0, nil, fmt.Errorf("header line %q", line)
		}
		header.Add(textproto.CanonicalMIMEHeaderKey(name), strings.TrimSpace(value))
	}
}

// chunked reads the next byte of a chunked body, and io.EOF at its end, after which
// the connection is ready for another request.
func (s *socket) chunked() (byte, error) {
	if s.left < 0 {
		return 0, io.EOF
	}
	if s.left == 0 {
		if s.any {
			if line, err := s.line(); err != nil || line != "" {
				return 0, fmt.Errorf("%q after the data of a chunk: %w", line, err)
			}
		}
		line, err := s.line()
		if err != nil {
			return 0, err
		}
		size, err := strconv.ParseUint(line, 16, 31)
		if err != nil {
			return 0, fmt.Errorf("chunk size %q", line)
		}
		if size == 0 {
			s.left = -1
			if line, err := s.line(); err != nil || line != "" {
				return 0, fmt.Errorf("%q after the last chunk: %w", line, err)
			}
			return 0, io.EOF
		}
		s.left, s.any = int(size), true
	}
	s.left--
	return s.next()
}

// sized reads a body of Content-Length bytes.
func (s *socket) sized(header http.Header) ([]byte, error) {
	n, err := strconv.Atoi(header.Get("Content-Length"))
	if err != nil {
		return nil, fmt.Errorf("content length %q: %w", header.Get("Content-Length"), err)
	}
	body := make([]byte, 0, n)
	for range n {
		b, err := s.next()
		if err != nil {
			return nil, err
		}
		body = append(body, b)
	}
	return body, nil
}
