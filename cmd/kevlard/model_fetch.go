package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/model"
	"github.com/urfave/cli/v2"
)

// fetchLineEvery is the time between two lines of progress where there is no terminal.
const fetchLineEvery = 5 * time.Second

func (sh shell) fetchCommand() *cli.Command {
	return &cli.Command{
		Name: "fetch", Usage: "copy a model's weights from other nodes to this node's disk", ArgsUsage: "MODEL",
		Description: "MODEL is a name that the ring serves, or an ID (sha256:...). The local daemon fetches, from all\n" +
			"nodes that have the weights, and checks them. Interrupted, it goes on the next time from what has come.",
		Flags: []cli.Flag{&cli.StringFlag{Name: "layers", Usage: "only what a stage of layers `LO-HI` needs (default: all layers)"}},
		Action: func(c *cli.Context) error {
			name, err := oneArgument(c, "MODEL")
			if err != nil {
				return err
			}
			var layers kevlard.Layers
			if text := c.String("layers"); c.IsSet("layers") {
				if layers, err = parseLayers(text); err != nil {
					return usageError("flag --layers: %w", err)
				}
			}
			shown := newFetchProgress(c.App.ErrWriter)
			var last report.Fetch
			err = sh.client(c).Fetch(c.Context, name, layers.Lo, layers.Hi, func(f report.Fetch) error {
				last = f
				shown.update(f)
				return nil
			})
			shown.end()
			if err != nil {
				return fmt.Errorf("model fetch %s: %w", name, err)
			}
			if wantsJSON(c) {
				return writeJSON(c.App.Writer, last)
			}
			return writeFetch(c.App.Writer, last)
		},
	}
}

// parseLayers reads LO-HI.
func parseLayers(text string) (l kevlard.Layers, err error) {
	lo, hi, ok := strings.Cut(text, "-")
	if l.Lo, err = strconv.Atoi(lo); err == nil {
		l.Hi, err = strconv.Atoi(hi)
	}
	if !ok || err != nil || l.Lo < 0 || l.Hi <= l.Lo {
		return l, fmt.Errorf("%q is not a range of layers: want LO-HI with 0 <= LO < HI, such as 0-4", text)
	}
	return l, nil
}

func writeFetch(w io.Writer, f report.Fetch) error {
	_, err := fmt.Fprintf(w, "%s: %s of %s, layers %d-%d, %s fetched now\n", f.Path, byteSize(f.Bytes), f.Name, f.Lo, f.Hi, byteSize(f.Fetched))
	for _, h := range f.Holders {
		line := fmt.Sprintf("  %s from %s", byteSize(h.Bytes), h.Node)
		if h.Wrong > 0 {
			line += fmt.Sprintf(", %d chunks rejected", h.Wrong)
		}
		if h.Dropped != "" {
			line += "; not asked any more: " + h.Dropped
		}
		if err == nil {
			_, err = fmt.Fprintln(w, line)
		}
	}
	return err
}

// fetchProgress shows a bar on a terminal, and elsewhere a line now and then.
type fetchProgress struct {
	w        io.Writer
	terminal bool
	begun    time.Time
	said     time.Time
	drawn    bool
}

func newFetchProgress(w io.Writer) *fetchProgress {
	p := &fetchProgress{w: w, begun: time.Now(), said: time.Now()}
	if f, ok := w.(*os.File); ok {
		_, _, p.terminal = terminalSize(f)
	}
	return p
}

func (p *fetchProgress) update(f report.Fetch) {
	if f.Total == 0 { // the header comes first
		if f.Waits != "" && !p.drawn {
			fmt.Fprintf(p.w, "kevlard: waits: %s\n", f.Waits)
		}
		return
	}
	verified := 0
	for _, u := range f.Units {
		if u.Verified {
			verified++
		}
	}
	rate := int64(float64(f.Fetched) / max(time.Since(p.begun).Seconds(), 0.001))
	text := fmt.Sprintf("%3d %% of %s, %d of %d units verified, %s/s from %d nodes", f.Bytes*100/f.Total, byteSize(f.Total), verified, len(f.Units), byteSize(rate), len(f.Holders))
	if p.terminal {
		const width = 24
		full := int(f.Bytes * width / f.Total)
		fmt.Fprintf(p.w, "\r\x1b[K%s [%s%s] %s", f.Name, strings.Repeat("#", full), strings.Repeat(".", width-full), text)
		p.drawn = true
		return
	}
	if now := time.Now(); now.Sub(p.said) >= fetchLineEvery {
		p.said = now
		fmt.Fprintf(p.w, "kevlard: fetching %s: %s\n", f.Name, text)
	}
}

// end finishes the line of the bar.
func (p *fetchProgress) end() {
	if p.drawn {
		fmt.Fprintln(p.w)
	}
}

// fetchedModels lists the directories of fetched models. Who may not look into the data
// directory sees none.
func fetchedModels(cfg config.Config) []string {
	indexes, err := filepath.Glob(filepath.Join(fetchedDir(cfg), "*", "parts.json"))
	if err != nil {
		return nil // the pattern is ours
	}
	for i, path := range indexes {
		indexes[i] = filepath.Dir(path)
	}
	return indexes
}

// stateText is stateOf for people.
func stateText(m *model.Manifest) string {
	state := stateOf(m)
	if state == "partial" {
		state += fmt.Sprintf(" (%d of %d units)", len(m.Units)-len(m.Absent), len(m.Units))
	}
	return state
}
