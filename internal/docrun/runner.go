package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
)

const (
	againWithin = 30 * time.Second // a command prints what is shown, or a background one is ready
	againEvery  = 200 * time.Millisecond
)

// runner follows the steps.
type runner struct {
	shell *shell
	rules *rules
	set   map[string]string
	out   io.Writer
	jobs  []namedJob

	ran, compared int
	skipped       []string
}

type namedJob struct {
	job
	at, command string
}

func (r *runner) say(at, what, command, remark string) {
	fmt.Fprintf(r.out, "%-24s %-8s %s%s\n", at, what, strings.ReplaceAll(command, "\n", " "), remark)
}

// all follows every step and prints what was done.
func (r *runner) all(steps []step) error {
	err := r.follow(steps)
	err = errors.Join(err, r.interrupt())
	if err != nil {
		return err
	}
	if err := r.rules.unused(); err != nil {
		return err
	}
	fmt.Fprintf(r.out, "\n%d commands run, %d outputs as shown, %d blocks or commands not run\n", r.ran, r.compared, len(r.skipped))
	for _, s := range r.skipped {
		fmt.Fprintln(r.out, "  not run:", s)
	}
	return nil
}

func (r *runner) follow(steps []step) error {
	for _, s := range steps {
		var err error
		if s.command == "" {
			err = r.file(s)
		} else {
			err = r.step(s)
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", s.at, s.command, err)
		}
	}
	return nil
}

// file saves a block as the file that the prose says it is.
func (r *runner) file(s step) error {
	save := r.rules.find(ruleSave, s.text)
	if len(save) == 0 {
		r.skip(s, fmt.Sprintf("a block of %s", s.lang), "nothing says what to do with it")
		return nil
	}
	for _, one := range save {
		if strings.Contains(s.text, "\nEND_OF_BLOCK\n") {
			return errors.New("the block has a line END_OF_BLOCK, which ends it here")
		}
		if _, err := r.quiet("cat >" + one.text + " <<'END_OF_BLOCK'\n" + s.text + "END_OF_BLOCK"); err != nil {
			return err
		}
		r.say(s.at, "saved", one.text, "")
	}
	return nil
}

func (r *runner) skip(s step, what, why string) {
	r.skipped = append(r.skipped, fmt.Sprintf("%s %s: %s", s.at, strings.ReplaceAll(what, "\n", " "), why))
	r.say(s.at, "NOT RUN", what, ": "+why)
}

func (r *runner) step(s step) error {
	if skip := r.rules.find(ruleSkip, s.command); len(skip) > 0 {
		r.skip(s, s.command, skip[0].text)
		return nil
	}
	for _, one := range r.rules.find(ruleBefore, s.command) {
		if err := r.aside(s, "prose", one.text); err != nil {
			return err
		}
	}
	command := r.filled(s.command)
	began := time.Now()
	var err error
	if background := r.rules.find(ruleBackground, s.command); len(background) > 0 {
		err = r.background(s, command, background[0].text)
	} else {
		err = r.foreground(s, command)
	}
	if err != nil {
		return err
	}
	r.ran++
	remark := fmt.Sprintf("  (%.1f s)", time.Since(began).Seconds())
	if s.shown != "" {
		r.compared++
		remark += ", as shown"
	}
	r.say(s.at, "run", command, remark)
	for _, one := range r.rules.find(ruleAfter, s.command) {
		if err := r.aside(s, "then", one.text); err != nil {
			return err
		}
	}
	return nil
}

// filled puts values for the words that stand for something.
func (r *runner) filled(command string) string {
	for name, value := range r.set {
		command = regexp.MustCompile(`\b`+regexp.QuoteMeta(name)+`\b`).ReplaceAllLiteralString(command, value)
	}
	return command
}

// aside does what a rule says around a command, and prints what that printed.
func (r *runner) aside(s step, what, command string) error {
	r.say(s.at, what, command, "")
	output, err := r.quiet(command)
	for line := range strings.Lines(output) {
		fmt.Fprintf(r.out, "%24s %8s %s\n", "", "", strings.TrimRight(line, "\n"))
	}
	return err
}

// quiet runs what is no command of the document and demands that it succeeds.
func (r *runner) quiet(command string) (output string, err error) {
	code, output, err := r.shell.run(command)
	if err == nil && code != 0 {
		err = fmt.Errorf("%s: exit code %d. Printed was:\n%s", command, code, output)
	}
	return output, err
}

func (r *runner) foreground(s step, command string) error {
	again := len(r.rules.find(ruleAgain, s.command)) > 0
	for deadline := time.Now().Add(againWithin); ; time.Sleep(againEvery) {
		code, output, err := r.shell.run(command)
		switch {
		case err != nil:
			return err
		case code != 0:
			err = fmt.Errorf("exit code %d. Printed was:\n%s", code, output)
		case s.shown != "":
			err = compare(s.shown, output)
		}
		if err == nil || !again || time.Now().After(deadline) {
			return err
		}
	}
}

// background starts a command and waits until it shows what the document does, and
// until the probe succeeds.
func (r *runner) background(s step, command, probe string) error {
	j, err := r.shell.background(command)
	if err != nil {
		return err
	}
	r.jobs = append(r.jobs, namedJob{j, s.at, command})
	for deadline := time.Now().Add(againWithin); ; time.Sleep(againEvery) {
		if !j.running() {
			return fmt.Errorf("it has ended. Printed was:\n%s", read1(j.output))
		}
		err = nil
		if s.shown != "" {
			err = compare(s.shown, read1(j.output))
		}
		if err == nil && probe != "" {
			_, err = r.quiet(probe)
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// interrupt ends what runs in the background, the latest first, as Ctrl-C does.
func (r *runner) interrupt() error {
	var errs []error
	for len(r.jobs) > 0 {
		j := r.jobs[len(r.jobs)-1]
		r.jobs = r.jobs[:len(r.jobs)-1]
		switch code, err := j.interrupt(); {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %s: after Ctrl-C: %w", j.at, j.command, err))
		case code != 0:
			errs = append(errs, fmt.Errorf("%s: %s: exit code %d after Ctrl-C. Printed was:\n%s", j.at, j.command, code, read1(j.output)))
		default:
			r.say(j.at, "Ctrl-C", j.command, "")
		}
	}
	return errors.Join(errs...)
}
