package chat

import "time"

const (
	// maxTemplate is the most bytes of a template; New refuses a larger one. The
	// longest published ones have 20 kB.
	maxTemplate = 64 << 10
	// maxNesting is the most brackets, and the most blocks, inside one another; New
	// refuses a template with more. The parser takes 9 kB of stack for a bracket, and
	// a stack that is used up ends the process: Go cannot recover from that.
	maxNesting = 128
	// maxOutput is the most bytes of a rendered prompt; then Render fails. It is
	// twice what a request may have.
	maxOutput = 8 << 20
	// maxSteps is the most control structures (a loop, a condition, a set, ...) and
	// macro calls of one rendering; then Render fails. A message takes about ten.
	maxSteps = 1 << 16
	// maxDepth is the most macro calls inside one another; then Render fails. As
	// for maxNesting, it keeps the stack from being used up.
	maxDepth = 32
	// maxRange is the most numbers that range() returns; then Render fails.
	maxRange = 1 << 14
	// maxTime is how long one rendering may take; then Render fails. It is looked at
	// between steps.
	maxTime = 2 * time.Second
	// maxReason is the most bytes of a template's own words in an error; the rest is
	// left out.
	maxReason = 512
)
