package client

import (
	"bufio"
	"io"
	"strings"
)

// maxLine is the most bytes of a line; a longer one breaks the stream.
const maxLine = 4 << 20

// event is one server-sent event, or a comment, which has no data.
type event struct{ id, data string }

// reader reads server-sent events.
type reader struct{ lines *bufio.Scanner }

func newReader(r io.Reader) reader {
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLine)
	return reader{s}
}

// next returns the next event that is whole: what a broken connection left of one is
// none.
func (r reader) next() (event, error) {
	var ev event
	for r.lines.Scan() {
		line := strings.TrimSuffix(r.lines.Text(), "\r")
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			return ev, nil
		case name == "id":
			ev.id = value
		case name == "data" && ev.data != "":
			ev.data += "\n" + value
		case name == "data":
			ev.data = value
		}
	}
	if err := r.lines.Err(); err != nil {
		return ev, err
	}
	return ev, io.ErrUnexpectedEOF
}
