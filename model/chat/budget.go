package chat

import (
	"fmt"
	"strings"
	"time"

	controlStructures "github.com/nikolalohinski/gonja/v2/builtins/control_structures"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
)

// budgetKey is where a rendering's budget is in its context. No template can name
// it: it has a space.
const budgetKey = "kevlard budget"

// budget bounds one rendering and collects what it writes.
type budget struct {
	now   func() time.Time
	end   time.Time
	steps int
	depth int
	out   strings.Builder
	err   error // the first thing over a bound, or the template's refusal
}

func newBudget(now func() time.Time) *budget { return &budget{now: now, end: now().Add(maxTime)} }

// fail keeps the first error.
func (b *budget) fail(err error) error {
	if b.err == nil {
		b.err = err
	}
	return b.err
}

// step counts one step.
func (b *budget) step() error {
	b.steps++
	switch {
	case b.err != nil:
		return b.err
	case b.steps > maxSteps:
		return b.fail(fmt.Errorf("render chat template: it took more than %d steps", maxSteps))
	case b.now().After(b.end):
		return b.fail(fmt.Errorf("render chat template: it took longer than %v", maxTime))
	}
	return nil
}

// Write implements io.Writer.
func (b *budget) Write(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.out.Len()+len(p) > maxOutput {
		return 0, b.fail(fmt.Errorf("render chat template: the prompt is larger than %d bytes", maxOutput))
	}
	return b.out.Write(p)
}

// refuse is the templates' raise_exception(REASON).
func (b *budget) refuse(args *exec.VarArgs) (any, error) {
	reason := "it does not say why"
	if len(args.Args) > 0 {
		reason = shorten(args.Args[0].String())
	}
	return nil, b.fail(&RefusedError{reason})
}

// macro bounds the calls of a macro.
func (b *budget) macro(f exec.Macro) exec.Macro {
	return func(args *exec.VarArgs) *exec.Value {
		if err := b.step(); err != nil {
			return exec.AsValue(err)
		}
		if b.depth == maxDepth {
			return exec.AsValue(b.fail(fmt.Errorf("render chat template: more than %d macros call one another", maxDepth)))
		}
		b.depth++
		defer func() { b.depth-- }()
		return f(args)
	}
}

// counted is a control structure that counts as a step each time it runs.
type counted struct{ exec.ControlStructure }

// Execute implements exec.ControlStructure.
func (c counted) Execute(r *exec.Renderer, tag *nodes.ControlStructureBlock) error {
	v, _ := r.Environment.Context.Get(budgetKey)
	b := v.(*budget) // Render puts it there
	if err := b.step(); err != nil {
		return err
	}
	if err := c.ControlStructure.Execute(r, tag); err != nil {
		return err
	}
	if m, ok := c.ControlStructure.(*controlStructures.MacroControlStructure); ok {
		if v, ok := r.Environment.Context.Get(m.Name); ok {
			if f, ok := v.(exec.Macro); ok {
				r.Environment.Context.Set(m.Name, b.macro(f))
			}
		}
	}
	return b.err // which a condition may have swallowed
}

// count makes a control structure's parser return a counted one.
func count(parse parser.ControlStructureParser) parser.ControlStructureParser {
	return func(p, args *parser.Parser) (nodes.ControlStructure, error) {
		node, err := parse(p, args)
		if err != nil {
			return nil, err
		}
		if loop, ok := node.(*controlStructures.ForControlStructure); ok && loop.Recursive {
			return nil, args.Error("recursive loops are not supported", nil)
		}
		structure, ok := node.(exec.ControlStructure)
		if !ok {
			return nil, args.Error(fmt.Sprintf("%T cannot be executed", node), nil)
		}
		return counted{structure}, nil
	}
}
