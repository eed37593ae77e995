package main

import (
	"fmt"
	"regexp"
	"strings"
)

// The kinds of rules. A line of the rules file is KIND, TAB, PATTERN, TAB, TEXT; the
// pattern is a regular expression that is looked for in commands (of save: in blocks).
const (
	ruleSkip       = "skip"       // not run; TEXT says why
	ruleSave       = "save"       // the reader saves the block as the file TEXT
	ruleBefore     = "before"     // the reader does TEXT first: what the prose asks for
	ruleAfter      = "after"      // TEXT must succeed then: it did what the document says
	ruleBackground = "background" // stays, until the end and Ctrl-C; TEXT, if any, is what must succeed before the reader goes on
	ruleAgain      = "again"      // run again until it prints what is shown: the reader is slower than we are; TEXT says why
)

// rule is one line of the file.
type rule struct {
	kind, text string
	pattern    *regexp.Regexp
	used       bool
}

type rules struct{ list []*rule }

func parseRules(text string) (*rules, error) {
	out := &rules{}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.SplitN(line, "\t", 3)
		if len(f) != 3 {
			return nil, fmt.Errorf("line %d: want KIND, TAB, PATTERN, TAB, TEXT", i+1)
		}
		switch f[0] {
		case ruleSkip, ruleSave, ruleBefore, ruleAfter, ruleAgain:
			if f[2] == "" {
				return nil, fmt.Errorf("line %d: %s needs a text", i+1, f[0])
			}
		case ruleBackground:
		default:
			return nil, fmt.Errorf("line %d: kind %q: want skip, save, before, after, background or again", i+1, f[0])
		}
		pattern, err := regexp.Compile(f[1])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		out.list = append(out.list, &rule{kind: f[0], text: f[2], pattern: pattern})
	}
	return out, nil
}

// find returns the rules of a kind for a command or block.
func (r *rules) find(kind, s string) []*rule {
	var out []*rule
	for _, one := range r.list {
		if one.kind == kind && one.pattern.MatchString(s) {
			one.used = true
			out = append(out, one)
		}
	}
	return out
}

// unused returns an error for rules that were for nothing: the document has changed,
// and what they stood for may now go unchecked.
func (r *rules) unused() error {
	for _, one := range r.list {
		if !one.used {
			return fmt.Errorf("the rule %s %q is for nothing in the documents", one.kind, one.pattern)
		}
	}
	return nil
}
