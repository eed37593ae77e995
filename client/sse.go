package client

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// maxLine is the most bytes of a line, and of an event's data over all its lines; what
// is longer breaks the stream.
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
	var data strings.Builder
	for r.lines.Scan() {
		line := strings.TrimSuffix(r.lines.Text(), "\r")
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			ev.data = data.String()
			return ev, nil
		case name == "id":
			ev.id = value
		case name == "data" && data.Len()+1+len(value) > maxLine:
			return event{}, fmt.Errorf("an event of more than %d bytes", maxLine)
		case name == "data":
			if data.Len() > 0 {
				data.WriteByte('\n')
			}
			data.WriteString(value)
		}
	}
	if err := r.lines.Err(); err != nil {
		return event{}, err
	}
	return event{}, io.ErrUnexpectedEOF
}
