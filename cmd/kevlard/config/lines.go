package config

import (
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

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
