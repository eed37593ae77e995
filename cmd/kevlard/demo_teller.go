package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kevlard/kevlard/internal/devmesh"
)

// demoWidth is the number of columns into which the story is folded.
const demoWidth = 78

// teller tells the story on the terminal: it folds the streamed text and puts lines between
// it. With -o json everything goes to stderr, so that stdout is one document.
type teller struct {
	mu     sync.Mutex
	w      io.Writer
	colour bool
	column int
	word   strings.Builder // the word that is still growing
}

func newTeller(c *cli.Context) *teller {
	w := c.App.Writer
	if wantsJSON(c) {
		w = c.App.ErrWriter
	}
	return &teller{w: w, colour: isTerminal(w)}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (t *teller) paint(code, text string) string {
	if !t.colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// note writes a remark of the narrator; the story's last word is finished first.
func (t *teller) note(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flush()
	t.column = 0
	fmt.Fprint(t.w, t.paint("2", fmt.Sprintf(format, args...)))
}

// line puts one line between the text, which goes on below it.
func (t *teller) line(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := "--- " + fmt.Sprintf(format, args...) + " "
	text += strings.Repeat("-", max(0, demoWidth-len(text)))
	fmt.Fprintf(t.w, "\n%s\n", t.paint("1;31", text))
	t.column = 0
}

// text writes a piece of the story, folded between words.
func (t *teller) text(piece string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range piece {
		switch r {
		case ' ', '\n':
			t.flush()
			switch {
			case r == '\n':
				fmt.Fprint(t.w, "\n")
				t.column = 0
			case t.column > 0:
				t.word.WriteByte(' ')
			}
		default:
			t.word.WriteRune(r)
		}
	}
}

func (t *teller) flush() {
	word := t.word.String()
	t.word.Reset()
	if t.column+len(word) > demoWidth {
		fmt.Fprint(t.w, "\n")
		t.column = 0
	}
	if t.column == 0 {
		word = strings.TrimPrefix(word, " ")
	}
	fmt.Fprint(t.w, word)
	t.column += len(word)
}

// pipelines shows who computes what.
func (t *teller) pipelines(mesh *devmesh.Mesh, took time.Duration) {
	var b strings.Builder
	fmt.Fprintf(&b, "ready in %.1f s\n\n", took.Seconds())
	hosts, n := mesh.Hosts(), mesh.Stages()
	for i := 0; i < len(hosts); i += n {
		var row []string
		for _, h := range hosts[i:min(i+n, len(hosts))] {
			row = append(row, fmt.Sprintf("%s %s", h.Name(), h.Layers()))
		}
		fmt.Fprintf(&b, "  pipeline %d: %s\n", i/n+1, strings.Join(row, " > "))
	}
	fmt.Fprintf(&b, "  clients:    %s %s\n\n", mesh.Entry().Name(), mesh.Entry().APIURL())
	t.note("%s", b.String())
}

// verdict shows the outcome.
func (t *teller) verdict(r demoReport) {
	t.mu.Lock()
	defer t.mu.Unlock()
	exact := t.paint("1;32", "yes")
	if !r.TokenExact {
		exact = t.paint("1;31", "no")
	}
	fmt.Fprintf(t.w, "\ntoken-exact: %s\n", exact)
	if r.Killed == nil {
		return
	}
	fmt.Fprintf(t.w, "recovery: %.0f ms\n\n", r.RecoveryMS)
	fmt.Fprintf(t.w, "  the client saw one pause of %.0f ms; between other pieces of text %.1f ms\n", r.RecoveryMS, r.TypicalMS)
	for _, f := range r.Failovers {
		fmt.Fprintf(t.w, "    detect   %8.1f ms  %s (%s)\n", f.DetectMS, f.Node, f.Cause)
		fmt.Fprintf(t.w, "    re-route %8.1f ms  to the host of its copy, which loads it, under a new term\n", f.RerouteMS)
		fmt.Fprintf(t.w, "    restore  %8.1f ms  %d of %d known tokens computed again, then the next one\n", f.RestoreMS, f.Known-f.From, f.Known)
	}
}
