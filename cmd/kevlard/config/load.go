package config

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
	"github.com/xrash/smetrics"
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

// Problem is something wrong with one key.
type Problem struct {
	Key     string
	Where   string // "FILE:LINE", "env NAME", "flag --name" or empty
	Text    string
	Nearest string // the key that was meant, perhaps
	line    int
}

// String says it in one line.
func (p Problem) String() string {
	var b strings.Builder
	if p.Where != "" {
		fmt.Fprintf(&b, "%s: ", p.Where)
	}
	if p.Key != "" {
		fmt.Fprintf(&b, "%s: ", p.Key)
	}
	b.WriteString(p.Text)
	if p.Nearest != "" {
		fmt.Fprintf(&b, " (did you mean %s?)", p.Nearest)
	}
	return b.String()
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
		if err := f.check(); err != nil {
			l.problem(Problem{Key: f.Key, Text: err.Error()})
		}
	}
	if len(l.problems) == 0 {
		for _, p := range l.out.Config.crossCheck() {
			l.problem(p)
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
	bad      map[string]bool // keys whose value could not even be read
	problems []Problem
	out      Loaded
}

// problem adds p, and where its key was set if p does not say.
func (l *loader) problem(p Problem) {
	if p.Where == "" && l.out.Origin[p.Key] != "default" {
		p.Where = l.out.Origin[p.Key]
	}
	if p.line == 0 {
		p.line = l.lines[p.Key]
	}
	if l.bad == nil {
		l.bad = map[string]bool{}
	}
	l.bad[p.Key] = true
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
	var tree map[string]any
	if err := toml.Unmarshal(l.src.Data, &tree); err != nil {
		p := Problem{Where: l.src.File, Text: "not TOML: " + strings.TrimPrefix(err.Error(), "toml: ")}
		if d, ok := errors.AsType[*toml.DecodeError](err); ok {
			p.line, _ = d.Position()
			p.Where = fmt.Sprintf("%s:%d", l.src.File, p.line)
			p.Key = strings.Join(d.Key(), ".")
		}
		l.problem(p)
		return
	}
	l.lines = keyLines(l.src.Data)
	for name, v := range sorted(tree) {
		l.table(name, v)
	}
}

// table takes over one top-level table.
func (l *loader) table(name string, v any) {
	prefix := name + "."
	known := slices.Contains(openTables, name) ||
		slices.ContainsFunc(l.fields, func(f Field) bool { return strings.HasPrefix(f.Key, prefix) })
	entries, isTable := v.(map[string]any)
	if !known || !isTable {
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
		var keys []string
		for _, f := range l.fields {
			keys = append(keys, f.Key)
		}
		l.problem(Problem{Key: key, Where: where, Text: "unknown key", Nearest: Nearest(key, keys)})
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

func (l *loader) where(key string) string {
	return fmt.Sprintf("%s:%d", l.src.File, l.lines[key])
}

// keyLines finds the line of each table and key of a valid TOML document.
func keyLines(data []byte) map[string]int {
	lines := map[string]int{}
	var p unstable.Parser
	p.Reset(data)
	var table []string
	for p.NextExpression() {
		e := p.Expression()
		var path []string
		line := 0
		for it := e.Key(); it.Next(); {
			if n := it.Node(); line == 0 {
				line = p.Shape(n.Raw).Start.Line
			}
			path = append(path, string(it.Node().Data))
		}
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = path
		case unstable.KeyValue:
			path = append(slices.Clone(table), path...)
		}
		// A key may open tables on its way; each gets the first line it appears on.
		for i := range path {
			name := strings.Join(path[:i+1], ".")
			if lines[name] == 0 {
				lines[name] = line
			}
		}
		if e.Kind == unstable.KeyValue && e.Value().Kind == unstable.InlineTable {
			inlineLines(&p, e.Value(), path, lines)
		}
	}
	return lines
}

func inlineLines(p *unstable.Parser, table *unstable.Node, path []string, lines map[string]int) {
	for it := table.Children(); it.Next(); {
		kv := it.Node()
		sub := slices.Clone(path)
		line := 0
		for k := kv.Key(); k.Next(); {
			line = p.Shape(k.Node().Raw).Start.Line
			sub = append(sub, string(k.Node().Data))
		}
		lines[strings.Join(sub, ".")] = line
	}
}

// Nearest returns the candidate most like name, or "" where none is much like it.
func Nearest(name string, candidates []string) string {
	best, score := "", 0.8 // below this, Jaro-Winkler finds likeness in anything
	for _, c := range candidates {
		if s := smetrics.JaroWinkler(name, c, 0.7, 4); s > score {
			best, score = c, s
		}
	}
	return best
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
