package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/kevlard/kevlard/daemon/report"
)

func (sh shell) keysCommand() *cli.Command {
	return &cli.Command{
		Name:  "keys",
		Usage: "change the cluster secret while the ring runs",
		Description: "A secret is changed in three steps, each on one node for all members that are alive: add the\n" +
			"new one (each accepts it besides the old), use it, remove the old one. Steps that would split\n" +
			"the ring are refused. Then copy the new file over [ring] secret_file on each node, which is\n" +
			"what a node without the data directory reads.\n\n" +
			"A node that was down meanwhile knows only the old secret and is not let in: its log and theirs\n" +
			"say so. Give it the new file in [ring] secret_file and restart it, or run there kevlard keys\n" +
			"add FILE and kevlard keys use ID; it rejoins by itself.",
		Subcommands: []*cli.Command{
			{Name: "list", Usage: "the secrets that each member holds, by their IDs", Action: func(c *cli.Context) error {
				if err := noArguments(c); err != nil {
					return err
				}
				return sh.keys(c, "list", nil, "")
			}},
			{Name: "add", Usage: "make all members accept the secret in FILE too", ArgsUsage: "FILE", Action: func(c *cli.Context) error {
				path, err := oneArgument(c, "FILE")
				if err != nil {
					return err
				}
				secret, err := readSecret(path)
				if err != nil {
					return err
				}
				return sh.keys(c, "add", secret, "")
			}},
			{Name: "use", Usage: "make all members use the secret called ID", ArgsUsage: "ID", Action: sh.keysByID},
			{Name: "remove", Usage: "make all members forget the secret called ID", ArgsUsage: "ID", Action: sh.keysByID},
		},
		Action: func(*cli.Context) error {
			return usageError("keys needs what to do: list, add, use or remove")
		},
	}
}

func (sh shell) keysByID(c *cli.Context) error {
	id, err := oneArgument(c, "ID")
	if err != nil {
		return err
	}
	return sh.keys(c, c.Command.Name, nil, id)
}

// keys does one step and shows what each member says.
func (sh shell) keys(c *cli.Context, do string, secret []byte, id string) error {
	k, err := sh.client(c).Keys(c.Context, do, secret, id)
	if err != nil {
		return within("keys "+do, err)
	}
	if wantsJSON(c) {
		err = writeJSON(c.App.Writer, k)
	} else {
		err = keysTable(k).write(c.App.Writer)
	}
	if err == nil && slices.ContainsFunc(k.Nodes, func(n report.NodeKeys) bool { return n.State == "alive" && n.Error != "" }) {
		return fmt.Errorf("keys %s: not done on all members that are alive: do it again before the next step", do)
	}
	return err
}

func keysTable(k report.Keys) *table {
	t := newTable("NODE", "IN USE", "ACCEPTED", "SECRET FILE", "NOTE")
	for _, n := range k.Nodes {
		inUse, accepted, note := "", "", n.Error
		if len(n.Secrets) > 0 {
			inUse, accepted = n.Secrets[0], strings.Join(n.Secrets[1:], ", ")
			if n.Configured != inUse {
				note = cmp.Or(note, "copy the secret in use to its secret_file")
			}
		}
		t.row(n.Node, inUse, accepted, n.Configured, note)
	}
	return t
}
