package api

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kevlard/kevlard"
)

// lastEventHeader is where a client that comes back says what it has got.
const lastEventHeader = "Last-Event-ID"

// phase is how far the events of one choice are.
type phase byte

const (
	fresh phase = iota // nothing was sent of it
	begun              // it was begun: its role, its echoed prompt
	told               // all its text was sent, its finish reason was not
	ended              // its finish reason was sent
)

// phaseLetters are the phases in ids.
const phaseLetters = "nbte"

// position is what a client has of one choice: the text of the leading tokens, as far
// as it was certain then, which is so many bytes. From tokens and phase alone all else
// follows: what the decoder and the stop matcher hold back is a function of the tokens.
type position struct {
	phase  phase
	tokens int
	bytes  int // of the answer; an echoed prompt is not counted
}

// place is what an event's id says: which sessions the answer comes from, and what the
// client has after that event.
type place struct {
	session kevlard.SessionID // of the only choice, or what the ids of all begin with
	choices []position
	usage   bool // the event with the usage was sent
}

// placeVersion is the first character of ids. Nodes of other versions may write others.
const placeVersion = "1"

// String writes the id, such as 1/01JABC/b12.57,n0.0: opaque for clients.
func (p place) String() string {
	var b strings.Builder
	b.WriteString(placeVersion + "/" + string(p.session) + "/")
	for k, c := range p.choices {
		if k > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%c%d.%d", phaseLetters[c.phase], c.tokens, c.bytes)
	}
	if p.usage {
		b.WriteString("/u")
	}
	return b.String()
}

// sessionOf returns the id of a choice's session.
func (p place) sessionOf(k int) kevlard.SessionID { return choiceSession(p.session, k, len(p.choices)) }

// choiceSession names the session of one of n choices.
func choiceSession(base kevlard.SessionID, k, n int) kevlard.SessionID {
	if n == 1 {
		return base
	}
	return base + kevlard.SessionID("-"+strconv.Itoa(k))
}

// parsePlace is the inverse of String, and takes nothing else.
func parsePlace(id string) (place, bool) {
	var p place
	if len(id) > maxEventID {
		return p, false
	}
	parts := strings.Split(id, "/")
	if len(parts) == 4 && parts[3] == "u" {
		p.usage, parts = true, parts[:3]
	}
	if len(parts) != 3 || parts[0] != placeVersion || !isSessionID(parts[1]) {
		return place{}, false
	}
	p.session = kevlard.SessionID(parts[1])
	choices := strings.Split(parts[2], ",")
	if len(choices) > maxChoices {
		return place{}, false
	}
	for _, text := range choices {
		c, ok := parsePosition(text)
		if !ok {
			return place{}, false
		}
		p.choices = append(p.choices, c)
	}
	return p, p.String() == id // one id for one place
}

func parsePosition(text string) (position, bool) {
	if text == "" || !strings.Contains(phaseLetters, text[:1]) {
		return position{}, false
	}
	tokens, bytes, _ := strings.Cut(text[1:], ".")
	t, err := strconv.ParseUint(tokens, 10, 31)
	if err != nil {
		return position{}, false
	}
	b, err := strconv.ParseUint(bytes, 10, 31)
	c := position{phase(strings.IndexByte(phaseLetters, text[0])), int(t), int(b)}
	return c, err == nil && (c.phase != fresh || c == position{phase: fresh})
}

// isSessionID reports whether text could be a session's id in the mesh: names of a
// client and a session, and what makes it unique.
func isSessionID(text string) bool {
	return isPlain(strings.Replace(text, ":", ".", 1), maxSessionID)
}
