package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/xrash/smetrics"
)

// Problem is something wrong with one key.
type Problem struct {
	Key     string
	Where   string // "FILE:LINE", "env NAME", "flag --name" or empty
	Text    string
	Nearest string // the key that was meant, perhaps
	line    int
	with    []string // the other keys of a contradiction
}

// maxProblem is the most bytes of a problem's text: values may be of any length.
const maxProblem = 600

// String says it in one line.
func (p Problem) String() string {
	var b strings.Builder
	if p.Where != "" {
		fmt.Fprintf(&b, "%s: ", p.Where)
	}
	if p.Key != "" {
		fmt.Fprintf(&b, "%s: ", plain(p.Key))
	}
	b.WriteString(clip(p.Text))
	if p.Nearest != "" {
		fmt.Fprintf(&b, " (did you mean %s?)", p.Nearest)
	}
	return b.String()
}

// plain quotes a key that would break a line of text.
func plain(key string) string {
	if len(key) > maxProblem || strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(clip(key))
	}
	return key
}

func clip(text string) string {
	if len(text) <= maxProblem {
		return text
	}
	return strings.ToValidUTF8(text[:maxProblem/2], "") + " [...] " + strings.ToValidUTF8(text[len(text)-maxProblem/2:], "")
}

// parts takes joined errors apart: each is a problem.
func parts(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// Nearest returns the candidate most like name, or "" where none is much like it.
// Short words whose letters are swapped are like each other too.
func Nearest(name string, candidates []string) string {
	best, score := "", 0.8 // below this, Jaro-Winkler finds likeness in anything
	for _, c := range candidates {
		if s := smetrics.JaroWinkler(name, c, 0.7, 4); s > score {
			best, score = c, s
		}
	}
	if best == "" && len(name) <= 5 {
		i := slices.IndexFunc(candidates, func(c string) bool { return len(c) == len(name) && letters(c) == letters(name) })
		if i >= 0 {
			return candidates[i]
		}
	}
	return best
}

func letters(word string) string {
	runes := []rune(word)
	slices.Sort(runes)
	return string(runes)
}
