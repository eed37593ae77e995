package chat

import (
	"errors"
	"fmt"

	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/parser"
)

// configuration is what Hugging Face's tokenizers give Jinja.
func configuration() *config.Config {
	c := config.New()
	c.TrimBlocks, c.LeftStripBlocks = true, true
	return c
}

// structures lists the control structures that templates may use. Those that read
// other templates are left out, and blocks, which can contain themselves.
func structures() []string {
	return []string{"for", "if", "set", "macro", "call", "filter", "raw", "with", "do", "break", "continue"}
}

// environment is what templates find besides the values of a rendering.
func environment() *exec.Environment {
	parsers := map[string]parser.ControlStructureParser{}
	for _, name := range structures() {
		if p, ok := builtins.ControlStructures.Get(name); ok {
			parsers[name] = count(p)
		}
	}
	globals := map[string]any{"range": rangeOf}
	for _, name := range []string{"namespace", "dict", "cycler", "joiner"} {
		if f, ok := builtins.GlobalFunctions.Get(name); ok {
			globals[name] = f
		}
	}
	return &exec.Environment{
		Context:           exec.NewContext(globals),
		Filters:           builtins.Filters,
		Tests:             builtins.Tests,
		ControlStructures: exec.NewControlStructureSet(parsers),
		Methods:           builtins.Methods,
	}
}

// rangeOf is Python's range() as a list. gonja's own starts a goroutine, which
// never ends if the numbers are not all read.
func rangeOf(args *exec.VarArgs) (any, error) {
	var n []int
	for _, a := range args.Args {
		if !a.IsInteger() {
			return nil, errors.New("range takes integers")
		}
		n = append(n, a.Integer())
	}
	start, stop, step := 0, 0, 1
	switch len(n) {
	case 1:
		stop = n[0]
	case 2:
		start, stop = n[0], n[1]
	case 3:
		start, stop, step = n[0], n[1], n[2]
	default:
		return nil, fmt.Errorf("range takes 1 to 3 integers, not %d", len(n))
	}
	if step == 0 {
		return nil, errors.New("range with a step of 0 does not end")
	}
	list := []int{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(list) == maxRange {
			return nil, fmt.Errorf("range returns more than %d numbers", maxRange)
		}
		list = append(list, i)
	}
	return list, nil
}
