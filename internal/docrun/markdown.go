package main

import (
	"fmt"
	"strings"
)

// step is one thing that a reader does, and what is said to come of it.
type step struct {
	at      string // DOCUMENT:LINE
	command string // may have several lines; "" for a block that is no command
	shown   string // the output that the document shows; "" for none
	lang    string // of a block that is no command
	text    string // of a block that is no command
}

// parse cuts a document into steps.
func parse(name, text string) ([]step, error) {
	var steps []step
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		lang, ok := strings.CutPrefix(lines[i], "```")
		if !ok {
			continue
		}
		lang = strings.TrimSpace(lang)
		first, end := i+1, i+1
		for end < len(lines) && lines[end] != "```" {
			end++
		}
		if end == len(lines) {
			return nil, fmt.Errorf("%s:%d: the block has no end", name, i+1)
		}
		at := func(line int) string { return fmt.Sprintf("%s:%d", name, line+1) }
		block := lines[first:end]
		switch lang {
		case "":
			return nil, fmt.Errorf("%s: the block has no language: want sh, console, text, or that of a file", at(i))
		case "sh":
			steps = append(steps, commands(block, first, at)...)
		case "console":
			more, err := dialogue(block, first, at)
			if err != nil {
				return nil, err
			}
			steps = append(steps, more...)
		case "text":
			if len(steps) == 0 || steps[len(steps)-1].command == "" || steps[len(steps)-1].shown != "" {
				return nil, fmt.Errorf("%s: the text follows no command without output: of what is it the output?", at(i))
			}
			steps[len(steps)-1].shown = strings.Join(block, "\n")
		default:
			steps = append(steps, step{at: at(i), lang: lang, text: strings.Join(block, "\n") + "\n"})
		}
		i = end
	}
	return steps, nil
}

// commands cuts a block into commands: a line each, and the next one too after a
// backslash.
func commands(block []string, first int, at func(int) string) []step {
	var steps []step
	for i := 0; i < len(block); i++ {
		if strings.TrimSpace(block[i]) == "" {
			continue
		}
		s := step{at: at(first + i), command: block[i]}
		for strings.HasSuffix(block[i], `\`) && i+1 < len(block) {
			i++
			s.command += "\n" + block[i]
		}
		steps = append(steps, s)
	}
	return steps
}

// dialogue cuts a block into commands, each behind "$ ", and their output.
func dialogue(block []string, first int, at func(int) string) ([]step, error) {
	var steps []step
	for i := 0; i < len(block); i++ {
		command, ok := strings.CutPrefix(block[i], "$ ")
		if !ok {
			if len(steps) == 0 {
				return nil, fmt.Errorf("%s: want a command behind \"$ \" first", at(first+i))
			}
			s := &steps[len(steps)-1]
			s.shown += block[i] + "\n"
			continue
		}
		s := step{at: at(first + i), command: command}
		for strings.HasSuffix(block[i], `\`) && i+1 < len(block) {
			i++
			s.command += "\n" + block[i]
		}
		steps = append(steps, s)
	}
	return steps, nil
}
