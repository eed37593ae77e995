package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// maxFile is the most bytes of a configuration file. A larger one is refused: it
// is something else by mistake.
const maxFile = 1 << 20

// Source is where values come from, in rising precedence: defaults, file,
// environment, flags.
type Source struct {
	Defaults Config
	File     string            // its name, for messages; empty: there is none
	Data     []byte            // its bytes
	Env      map[string]string // the process environment
	Flags    map[string]string // key to text, only those given
}

// Loaded is a configuration with the origin of its values.
type Loaded struct {
	Config   Config
	Origin   map[string]string // key to "default", "FILE:LINE", "env NAME" or "flag --name"
	Warnings []Problem
}

// Load reads all sources. Where there are problems, it returns all of them, in
// the order of lines.
func Load(src Source) (Loaded, []Problem) {
	l := loader{src: src, out: Loaded{Config: src.Defaults, Origin: map[string]string{}}}
	l.fields = l.out.Config.Fields()
	for _, f := range l.fields {
		l.out.Origin[f.Key] = "default"
	}
	if src.File != "" {
		l.file()
	}
	for _, f := range l.fields {
		if text, ok := src.Env[f.Env()]; ok {
			l.text(f, text, "env "+f.Env())
		}
		if text, ok := src.Flags[f.Key]; ok {
			l.text(f, text, "flag --"+f.Flag())
		}
	}
	for _, f := range l.fields {
		if f.check == nil || l.bad[f.Key] {
			continue
		}
		for _, err := range parts(f.check()) {
			l.problem(Problem{Key: f.Key, Text: err.Error()})
		}
	}
	for _, p := range l.out.Config.crossCheck() {
		if l.cut {
			break // the keys that are missing may come later in the file
		}
		// What follows from a mistake that was named already is none of its own.
		if !slices.ContainsFunc(append(p.with, p.Key), func(key string) bool { return l.bad[key] }) {
			l.cross(p)
		}
	}
	slices.SortStableFunc(l.problems, func(a, b Problem) int { return cmp.Compare(a.line, b.line) })
	return l.out, l.problems
}

// loader is the state of one Load.
type loader struct {
	src      Source
	fields   []Field
	lines    map[string]int
	bad      map[string]bool // keys with a problem
	cut      bool            // the file was read in part only
	problems []Problem
	out      Loaded
}

// problem adds p, and where its key was set if p does not say. Its key is bad from
// then on.
func (l *loader) problem(p Problem) {
	if l.bad == nil {
		l.bad = map[string]bool{}
	}
	l.bad[p.Key] = true
	l.cross(p)
}

// cross adds p like problem, but its key may have others.
func (l *loader) cross(p Problem) {
	if p.Where == "" && l.out.Origin[p.Key] != "default" {
		p.Where = l.out.Origin[p.Key]
	}
	if p.line == 0 {
		p.line = l.lines[p.Key]
	}
	l.problems = append(l.problems, p)
}

func (l *loader) text(f Field, text, origin string) {
	l.out.Origin[f.Key] = origin
	if f.Inert() {
		l.inert(f.Key, origin)
		return
	}
	if err := f.setText(text); err != nil {
		l.problem(Problem{Key: f.Key, Text: err.Error()})
	}
}

func (l *loader) inert(key, where string) {
	l.out.Warnings = append(l.out.Warnings, Problem{Key: key, Where: where, Text: "has no effect yet"})
}

func (l *loader) file() {
	if len(l.src.Data) > maxFile {
		l.problem(Problem{Where: l.src.File, Text: fmt.Sprintf("%d bytes are too many for a configuration: at most %d", len(l.src.Data), maxFile)})
		return
	}
	data := l.src.Data
	var tree map[string]any
	if err := toml.Unmarshal(data, &tree); err != nil {
		// What stands before the mistake is looked at too.
		if data = data[:l.syntax(err)]; toml.Unmarshal(data, &tree) != nil {
			return
		}
	}
	l.lines = keyLines(data)
	for name, v := range sorted(tree) {
		l.table(name, v)
	}
}

// syntax reports why the file is not TOML, and returns where the line of the mistake
// begins.
func (l *loader) syntax(err error) int {
	l.cut = true
	p := Problem{Where: l.src.File, Text: "not TOML: " + strings.TrimPrefix(err.Error(), "toml: ")}
	at := 0
	if d, ok := errors.AsType[*toml.DecodeError](err); ok {
		p.line, _ = d.Position()
		p.Where = fmt.Sprintf("%s:%d", l.src.File, p.line)
		p.Key = strings.Join(d.Key(), ".")
		for range p.line - 1 {
			at += bytes.IndexByte(l.src.Data[at:], '\n') + 1
		}
	}
	l.problem(p)
	return at
}

// table takes over one top-level table.
func (l *loader) table(name string, v any) {
	prefix := name + "."
	known := slices.Contains(openTables, name) ||
		slices.ContainsFunc(l.fields, func(f Field) bool { return strings.HasPrefix(f.Key, prefix) })
	entries, isTable := v.(map[string]any)
	if known && !isTable {
		l.problem(Problem{Key: name, Where: l.where(name), Text: fmt.Sprintf("%s is given: want a table, [%s]", kindOf(v), name)})
		return
	}
	if !known {
		l.unknown(name, isTable)
		return
	}
	for key, value := range sorted(entries) {
		l.value(prefix+key, value)
	}
}

// unknown reports a top-level name that is not a table of ours.
func (l *loader) unknown(name string, isTable bool) {
	p := Problem{Key: name, Where: l.where(name), Text: "unknown table"}
	candidates := slices.Clone(openTables)
	for _, f := range l.fields {
		table, leaf, _ := strings.Cut(f.Key, ".")
		if !isTable && leaf == name {
			p.Nearest = f.Key
		}
		candidates = append(candidates, table)
	}
	if !isTable {
		p.Text = "unknown key outside any table"
	}
	p.Nearest = cmp.Or(p.Nearest, Nearest(name, candidates))
	l.problem(p)
}

func (l *loader) value(key string, v any) {
	i := slices.IndexFunc(l.fields, func(f Field) bool { return f.Key == key })
	where := l.where(key)
	if i < 0 {
		if table, _, _ := strings.Cut(key, "."); slices.Contains(openTables, table) {
			l.inert(key, where)
			return
		}
		l.problem(Problem{Key: key, Where: where, Text: "unknown key", Nearest: l.nearest(key)})
		return
	}
	f := l.fields[i]
	l.out.Origin[key] = where
	if f.Inert() {
		l.inert(key, where)
		return
	}
	if err := f.setValue(v); err != nil {
		l.problem(Problem{Key: key, Text: err.Error()})
	}
}

// nearest returns the key that was meant: the same name in another table, or one
// like it.
func (l *loader) nearest(key string) string {
	_, leaf, _ := strings.Cut(key, ".")
	var keys, same []string
	for _, f := range l.fields {
		keys = append(keys, f.Key)
		if strings.HasSuffix(f.Key, "."+leaf) {
			same = append(same, f.Key)
		}
	}
	if len(same) == 1 {
		return same[0]
	}
	return Nearest(key, keys)
}

func (l *loader) where(key string) string {
	return fmt.Sprintf("%s:%d", l.src.File, l.lines[key])
}

// sorted ranges over a map in the order of its keys.
func sorted(m map[string]any) iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}
