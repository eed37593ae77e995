package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

// manSection is that of programs which administrators run.
const manSection = 8

func manCommand() *cli.Command {
	return &cli.Command{
		Name: "man", Usage: "print the man page",
		Description: "kevlard man | man -l -\nkevlard man > /usr/local/share/man/man8/kevlard.8",
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			_, err := fmt.Fprint(c.App.Writer, manPage(c.App))
			return err
		},
	}
}

// manPage writes the page out of the command tree. It has no date, so that equal
// binaries give equal pages.
func manPage(app *cli.App) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH KEVLARD %d \"\" \"kevlard %s\" \"System administration\"\n", manSection, roff(buildVersion().Version))
	fmt.Fprintf(&b, ".SH NAME\nkevlard \\- %s\n", roff(app.Usage))
	b.WriteString(".SH SYNOPSIS\n.B kevlard\n[\\fIflags\\fR] \\fIVERB\\fR [\\fIflags\\fR] [\\fIarguments\\fR]\n")
	b.WriteString(".SH DESCRIPTION\n" + roff(manDescription))
	b.WriteString(".SH GLOBAL FLAGS\nFlags may stand anywhere on the line.\n")
	manFlags(&b, app.Flags)
	b.WriteString(".SH VERBS\n")
	visit(app.Commands, "", func(path string, c *cli.Command) {
		if len(c.Subcommands) > 0 {
			return // it does nothing by itself; its verbs follow
		}
		fmt.Fprintf(&b, ".SS \"%s\"\n%s.\n", roff(strings.TrimSpace(path+" "+c.ArgsUsage)), roff(c.Usage))
		if c.Description != "" {
			fmt.Fprintf(&b, ".PP\n.nf\n%s\n.fi\n", roff(c.Description))
		}
		manFlags(&b, c.Flags)
	})
	b.WriteString(".SH EXIT STATUS\n")
	for _, e := range []struct {
		code int
		text string
	}{
		{exitDone, "done"},
		{exitFailed, "failed"},
		{exitUsage, "usage or bad configuration"},
		{exitNoDaemon, "no daemon answers on the control socket"},
		{exitTimeout, "timed out"},
		{exitRefused, "refused by policy: quorum, capacity, authorisation"},
		{exitInterrupted, "interrupted"},
	} {
		fmt.Fprintf(&b, ".TP\n.B %d\n%s\n", e.code, roff(e.text))
	}
	b.WriteString(".SH FILES\n")
	for _, f := range [][2]string{
		{defaultConfigFile, "configuration of the daemon, if it exists"},
		{systemSocket, "control socket; else $XDG_RUNTIME_DIR/kevlard.sock"},
		{"/var/lib/kevlard", "identity, remembered peers, digests of models"},
	} {
		fmt.Fprintf(&b, ".TP\n.I %s\n%s\n", roff(f[0]), roff(f[1]))
	}
	return b.String()
}

// manDescription opens the page.
const manDescription = "Every host of a ring runs one daemon, kevlard agent. The other verbs ask it through its\n" +
	"control socket, or work on files. Read verbs print a table, or one JSON document with -o json;\n" +
	"logs and progress go to stderr. A value comes from a flag, or else from the environment\n" +
	"(KEVLARD_...), or else from the configuration file, or else it is the default.\n"

// manFlags lists the visible flags.
func manFlags(b *strings.Builder, flags []cli.Flag) {
	for _, f := range flags {
		v, ok := f.(cli.VisibleFlag)
		if !ok || !v.IsVisible() {
			continue
		}
		doc, ok := f.(cli.DocGenerationFlag)
		if !ok {
			continue
		}
		value, usage := flagValue(doc.GetUsage())
		var names []string
		for _, n := range f.Names() {
			dashes := "--"
			if len(n) == 1 {
				dashes = "-"
			}
			names = append(names, `\fB`+roff(dashes+n)+`\fR`)
		}
		fmt.Fprintf(b, ".TP\n%s", strings.Join(names, ", "))
		if doc.TakesValue() {
			fmt.Fprintf(b, ` \fI%s\fR`, roff(value))
		}
		fmt.Fprintf(b, "\n%s\n", roff(usage))
	}
}

// flagValue returns the name of a flag's value, which its usage has in backquotes,
// and the usage without them.
func flagValue(usage string) (name, rest string) {
	before, after, ok := strings.Cut(usage, "`")
	value, tail, closed := strings.Cut(after, "`")
	if !ok || !closed {
		return "VALUE", usage
	}
	return value, before + value + tail
}

// roff escapes text for troff.
func roff(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text), "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
