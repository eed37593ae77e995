package main

import (
	"fmt"
	"regexp"
	"strings"
)

// varying finds what differs from run to run, and what Markdown needs otherwise than
// a terminal: how lines are folded.
var varying = regexp.MustCompile(`[0-9A-Z]{26}|[0-9a-f]{12,}|[0-9]+(?:\.[0-9]+)?|-{2,}|\s+`)

// shape turns a sample of output into a pattern for the like of it. Numbers, ids and
// digests may be others of their kind; blanks and line ends may be anywhere that the
// sample has some; a line "..." stands for any text, none too. All else must be equal.
func shape(sample string) string {
	var b strings.Builder
	for line := range strings.Lines(sample) {
		if strings.TrimSpace(line) == "..." {
			b.WriteString(`(?s:.*?)\s*`)
			continue
		}
		at := 0
		for _, m := range varying.FindAllStringIndex(line, -1) {
			b.WriteString(regexp.QuoteMeta(line[at:m[0]]))
			b.WriteString(likeOf(line[m[0]:m[1]]))
			at = m[1]
		}
		b.WriteString(regexp.QuoteMeta(line[at:]))
	}
	return b.String()
}

// likeOf returns a pattern for one thing that varying has found.
func likeOf(s string) string {
	switch {
	case strings.TrimSpace(s) == "":
		return `\s*`
	case s[0] == '-':
		return `-+`
	case len(s) == 26 && strings.ToUpper(s) == s && strings.ContainsAny(s, "ABCDEFGHJKMNPQRSTVWXYZ"):
		return `[0-9A-Z]{26}`
	case len(s) >= 12 && strings.ContainsAny(s, "abcdef"):
		return fmt.Sprintf(`[0-9a-f]{%d}`, len(s))
	}
	return `[0-9]+(?:\.[0-9]+)?`
}

// compare returns an error that says where the output leaves the sample, or nil.
func compare(sample, output string) error {
	whole, err := regexp.Compile(`^\s*` + shape(sample) + `\s*$`)
	if err != nil {
		return fmt.Errorf("the sample is too long to compare: %w", err)
	}
	if whole.MatchString(output) {
		return nil
	}
	lines := strings.SplitAfter(strings.TrimRight(sample, "\n"), "\n")
	good := 0
	for good < len(lines) && regexp.MustCompile(`^\s*`+shape(strings.Join(lines[:good+1], ""))).MatchString(output) {
		good++
	}
	if good == len(lines) {
		return fmt.Errorf("more is printed than the document shows; a last line \"...\" would allow it. Printed was:\n%s", output)
	}
	return fmt.Errorf("line %d of the sample is not what is printed: %s\nPrinted was:\n%s", good+1, strings.TrimSpace(lines[good]), output)
}
