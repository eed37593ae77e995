package sdk

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// parser reads server-sent events byte by byte, as the HTML standard (9.2.6) says:
// lines end with CR, LF or CRLF; a blank line dispatches; a line that begins with a
// colon is a comment. It is stricter in what may come: ids, data and comments only, a
// blank line only after one of these, UTF-8 in each line.
type parser struct {
	line     []byte
	cr       bool   // the last byte was CR: a LF now belongs to it
	data     []byte // of the event under way
	dirty    bool   // a line stands since the last blank one
	comments int    // so far
	begun    bool
}

// push takes one byte, and returns the data of an event that it completes.
func (p *parser) push(b byte) (data string, dispatched bool, err error) {
	wasCR := p.cr
	p.cr = b == '\r'
	switch {
	case b == '\n' && wasCR:
		return "", false, nil
	case b != '\n' && b != '\r':
		if p.line = append(p.line, b); !p.begun && bytes.HasPrefix(p.line, []byte("\ufeff")) {
			return "", false, errors.New("the stream begins with a byte order mark")
		}
		return "", false, nil
	}
	line := p.line
	p.line, p.begun = nil, true
	if !utf8.Valid(line) {
		return "", false, fmt.Errorf("line %q is not UTF-8", line)
	}
	if len(line) == 0 {
		return p.blank()
	}
	p.dirty = true
	name, value, _ := strings.Cut(string(line), ":")
	switch name {
	case "":
		p.comments++
	case "id":
		if strings.TrimPrefix(value, " ") == "" || p.data != nil {
			return "", false, fmt.Errorf("line %q: want an id before the data", line)
		}
	case "data":
		p.data = append(p.data, strings.TrimPrefix(value, " ")...)
		p.data = append(p.data, '\n')
	default:
		return "", false, fmt.Errorf("line %q: want an id, data or a comment", line)
	}
	return "", false, nil
}

func (p *parser) blank() (data string, dispatched bool, err error) {
	if !p.dirty {
		return "", false, errors.New("a blank line that ends nothing")
	}
	data, dispatched = strings.TrimSuffix(string(p.data), "\n"), p.data != nil
	p.data, p.dirty = nil, false
	return data, dispatched, nil
}

// end checks that the stream may end here.
func (p *parser) end() error {
	if len(p.line) > 0 || p.dirty {
		return fmt.Errorf("the stream ends in the middle of an event: %q %q", p.data, p.line)
	}
	return nil
}

// TestParser checks the judge before it judges.
func TestParser(t *testing.T) {
	for _, c := range []struct {
		name, stream, want string
		comments           int
		bad                bool
	}{
		{name: "line feeds", stream: "data: a\n\ndata: b\n\n", want: "a|b"},
		{name: "carriage returns", stream: "data: a\r\rdata: b\r\r", want: "a|b"},
		{name: "both", stream: "data: a\r\n\r\ndata: b\r\n\r\n", want: "a|b"},
		{name: "several lines", stream: "data: a\ndata:  b\ndata\n\n", want: "a\n b\n"},
		{name: "no space", stream: "data:a:b\n\n", want: "a:b"},
		{name: "empty data", stream: "data:\n\n", want: ""},
		{name: "comments", stream: ": x\n\ndata: a\n:y\ndata: b\n\n", want: "a\nb", comments: 2},
		{name: "ids", stream: "id: 1\ndata: a\n\nid: 2\ndata: b\n\n", want: "a|b"},
		{name: "empty id", stream: "id: \ndata: a\n\n", bad: true},
		{name: "late id", stream: "data: a\nid: 1\n\n", bad: true},
		{name: "another field", stream: "event: x\n\n", bad: true},
		{name: "not UTF-8", stream: "data: \xc3\n\n", bad: true},
		{name: "blank lines", stream: "data: a\n\n\n", bad: true},
		{name: "byte order mark", stream: "\ufeffdata: a\n\n", bad: true},
		{name: "cut off", stream: "data: a\n\ndata: b\n", bad: true},
		{name: "cut off in a line", stream: "data: a\n\ndat", bad: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p parser
			var got []string
			err := func() error {
				for i := range len(c.stream) {
					data, ok, err := p.push(c.stream[i])
					if err != nil {
						return err
					}
					if ok {
						got = append(got, data)
					}
				}
				return p.end()
			}()
			if (err != nil) != c.bad || err == nil && (strings.Join(got, "|") != c.want || p.comments != c.comments) {
				t.Errorf("events %q, %d comments, error %v; want %q, %d, error %t", got, p.comments, err, c.want, c.comments, c.bad)
			}
		})
	}
}
