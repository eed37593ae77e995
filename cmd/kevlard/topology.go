package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/urfave/cli/v2"
)

func (sh shell) topologyCommand() *cli.Command {
	return &cli.Command{
		Name: "topology", Usage: "models, pipelines and who holds what", Flags: []cli.Flag{watchFlag()},
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			client := sh.client(c)
			return show(c, func(w io.Writer) error {
				t, err := client.Topology(c.Context)
				if err != nil {
					return err
				}
				if wantsJSON(c) {
					return writeJSON(w, t)
				}
				return writeTopology(w, t)
			})
		},
	}
}

func writeTopology(w io.Writer, top report.Topology) error {
	if len(top.Models) == 0 {
		fmt.Fprintln(w, "no node holds a stage of any model: see [models] assign")
	}
	for _, m := range top.Models {
		state := ""
		if m.Degraded {
			state = "  DEGRADED"
		}
		fmt.Fprintf(w, "%s  %s  %d layers%s\n", m.Name, shortID(m.ID), m.Layers, state)
		t := newTable("  PIPELINE", "LAYERS", "NODE", "STATE")
		for _, p := range m.Pipelines {
			for i, s := range p.Stages {
				id := p.ID
				if i > 0 {
					id = ""
				}
				node := s.Node
				if s.Shared {
					node += " (shared)"
				}
				t.rows = append(t.rows, []string{"  " + id, fmt.Sprintf("%d-%d", s.Lo, s.Hi), node, s.State})
			}
		}
		if err := t.write(w); err != nil {
			return err
		}
		for _, u := range m.UnderReplicated {
			fmt.Fprintf(w, "  layers %d-%d: %d ready of %d wanted\n", u.Lo, u.Hi, u.Ready, u.Want)
		}
	}
	return nil
}

// shortID shows the beginning of a digest.
func shortID(id string) string {
	if d, err := kevlard.ParseDigest(id); err == nil {
		return d.Short()
	}
	return strings.TrimSpace(id)
}
