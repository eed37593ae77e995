package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"
)

// The values of -o.
const (
	formatTable = "table"
	formatJSON  = "json"
)

// outputFormat returns the checked value of -o.
func outputFormat(c *cli.Context) (string, error) {
	switch f := c.String("output"); f {
	case formatTable, formatJSON:
		return f, nil
	default:
		return "", usageError("flag -o is %q: want table or json", f)
	}
}

// wantsJSON reports whether the user asked for JSON; Before has checked the flag.
func wantsJSON(c *cli.Context) bool { return c.String("output") == formatJSON }

// writeJSON writes one indented JSON document.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// table collects rows for people.
type table struct{ rows [][]string }

// newTable starts a table with the given column heads.
func newTable(heads ...string) *table { return &table{rows: [][]string{heads}} }

// row adds one row. Empty cells are shown as "-".
func (t *table) row(cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = "-"
		}
	}
	t.rows = append(t.rows, cells)
}

// write aligns the columns and writes the table.
func (t *table) write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range t.rows {
		fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// byteSize shows a number of bytes to people.
func byteSize(n int64) string {
	units := []string{"KiB", "MiB", "GiB", "TiB"}
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, u := float64(n)/1024, 0
	for v >= 1024 && u < len(units)-1 {
		v, u = v/1024, u+1
	}
	return fmt.Sprintf("%.1f %s", v, units[u])
}
