package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/urfave/cli/v2"
)

func (sh shell) membersCommand() *cli.Command {
	return &cli.Command{
		Name: "members", Usage: "the nodes of the ring, as this node sees them", Flags: []cli.Flag{watchFlag()},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			client := sh.client(c)
			return show(c, func(w io.Writer) error {
				m, err := client.Members(c.Context)
				if err != nil {
					return err
				}
				if wantsJSON(c) {
					return writeJSON(w, m)
				}
				return membersTable(m).write(w)
			})
		},
	}
}

func membersTable(m report.Members) *table {
	t := newTable("NAME", "STATE", "READY", "ROLE", "ADDRESS", "STAGES", "RTT", "KV", "VERSION")
	for _, n := range m.Nodes {
		name := n.Name
		if name == m.Self {
			name += " *"
		}
		ready := "yes"
		if !n.Ready {
			ready = "no"
			if n.Reason != "" {
				ready += ": " + n.Reason
			}
		}
		rtt := ""
		if n.RTTMS > 0 {
			rtt = fmt.Sprintf("%.1f ms", n.RTTMS)
		}
		t.row(name, n.State, ready, n.Role, n.Addr, stagesText(n.Stages), rtt, n.Transport, n.Version)
	}
	return t
}

// stagesText shows stages in one cell: "0-2 ready, 2-4 loading 40 %".
func stagesText(stages []report.Stage) string {
	var parts []string
	for _, s := range stages {
		text := fmt.Sprintf("%d-%d %s", s.Lo, s.Hi, s.State)
		if s.State == "loading" {
			text += fmt.Sprintf(" %.0f %%", s.Progress*100)
		}
		if s.Slowness >= 2 {
			text += fmt.Sprintf(" (%.1f times as slow as others)", s.Slowness)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}
