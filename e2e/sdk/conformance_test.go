package sdk

import (
	"fmt"
	"testing"
)

// TestConformance runs every client against one mesh.
func TestConformance(t *testing.T) {
	table := readTable(t)
	m := start(t)
	s := &suite{m, newClient(m)}
	t.Run("openai-go", func(t *testing.T) {
		for _, r := range table.Refused {
			t.Run("refused: "+r.Name, func(t *testing.T) { s.refused(t, r) })
		}
		t.Run("models", s.models)
		t.Run("one session at a time", s.busy)
		for _, streamed := range []bool{false, true} {
			t.Run(fmt.Sprintf("cancelled, streamed %t", streamed), func(t *testing.T) { s.cancelled(t, streamed) })
		}
		for _, r := range table.Rows {
			t.Run(r.Name, func(t *testing.T) { s.matrix(t, r) })
		}
	})
	t.Run("byte by byte", func(t *testing.T) {
		for _, r := range table.Rows {
			if r.Needs == "" {
				t.Run(r.Name, func(t *testing.T) { s.bytewise(t, r) })
			}
		}
		t.Run("slow readers", s.slow)
	})
	c := newControl(t, s, table)
	c.install(t)
	for _, tests := range []string{"refused: ", "one: ", "row: "} {
		t.Run("openai for Node, "+tests, func(t *testing.T) {
			if err := c.node(t.Context(), tests); err != nil {
				t.Fatal(err)
			}
		})
	}
	t.Run("a silence that ends", func(t *testing.T) { s.silence(t, c) })
	t.Run("an outage that lasts", func(t *testing.T) { s.lasting(t, c) })
}
