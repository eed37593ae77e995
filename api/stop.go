package api

import "strings"

// stopMatcher cuts a growing text before the first stop string, wherever the
// pieces of the text end. It holds back no more than could still become one.
type stopMatcher struct {
	stops []string
	held  string // the longest tail of the text that is a proper prefix of a stop
}

// push adds text and returns what is certain to belong to the answer. Once found
// is true the answer is complete and nothing more may be pushed.
//
// Of several stops, the one that is complete first wins, and of those the longest.
// So the result does not depend on the pieces in which the text comes.
func (m *stopMatcher) push(text string) (out string, found bool) {
	text = m.held + text
	m.held = ""
	begin, end := -1, -1
	for _, s := range m.stops {
		if i := strings.Index(text, s); i >= 0 {
			if e := i + len(s); end < 0 || e < end || e == end && i < begin {
				begin, end = i, e
			}
		}
	}
	if begin >= 0 {
		return text[:begin], true
	}
	keep := len(text) - m.pending(text)
	m.held = text[keep:]
	return text[:keep], false
}

// pending returns the length of the longest tail of text that is a proper prefix
// of a stop.
func (m *stopMatcher) pending(text string) int {
	keep := 0
	for _, s := range m.stops {
		for n := min(len(s)-1, len(text)); n > keep; n-- {
			if strings.HasSuffix(text, s[:n]) {
				keep = n
				break
			}
		}
	}
	return keep
}

// flush returns what was held back: the answer ended for another reason.
func (m *stopMatcher) flush() string {
	held := m.held
	m.held = ""
	return held
}
