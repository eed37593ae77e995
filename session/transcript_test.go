package session

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/protocol"
)

var rewrite = flag.Bool("rewrite", false, "write what the transcripts should say from what happens")

// TestTranscripts replays testdata/*.txt. A line "> 10ms prepared n1 0 5" is what
// happens at that time; the lines below it are what the session asks for then,
// and its state.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			got := replay(t, string(b))
			if *rewrite {
				if err := os.WriteFile(f, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if want := string(b); got != want {
				t.Errorf("happens now:\n%s", got)
			}
		})
	}
}

// replay runs the commands of a transcript and returns it with what happens.
func replay(t *testing.T, script string) string {
	var out strings.Builder
	var m *Machine
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "#") || line == "":
			fmt.Fprintln(&out, line)
		case strings.HasPrefix(line, "session "):
			fmt.Fprintln(&out, line)
			m = parseSession(t, strings.Fields(line)[1:])
		case strings.HasPrefix(line, "> "):
			fmt.Fprintln(&out, line)
			f := strings.Fields(line[2:])
			at, err := time.ParseDuration(f[0])
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			for _, e := range happen(t, m, kevlard.Instant(at), f[1], f[2:]) {
				fmt.Fprintln(&out, show(e))
			}
			fmt.Fprintln(&out, state(m))
		}
	}
	return out.String()
}

func parseSession(t *testing.T, args []string) *Machine {
	n := map[string]int{"prompt": 5, "max": 3}
	for _, a := range args {
		k, v, _ := strings.Cut(a, "=")
		n[k] = number(t, v)
	}
	r := Request{MaxTokens: n["max"], MinTokens: n["min"], IgnoreEOG: n["ignore"] > 0}
	r.Sampling.Logprobs = n["logprobs"] > 0
	r.Envelope = make([]byte, n["envelope"])
	for i := range n["prompt"] {
		r.Prompt = append(r.Prompt, kevlard.Token(i))
	}
	if n["eog"] > 0 {
		r.EOG = []kevlard.Token{kevlard.Token(n["eog"])}
	}
	return New("s", "o.1", r, Timing{Chunk: n["chunk"], Window: n["window"]}, 0)
}

func number(t *testing.T, s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// happen carries out one command. Words left out mean the present term.
func happen(t *testing.T, m *Machine, now kevlard.Instant, what string, args []string) []Effect {
	arg := func(i int) string {
		if i < len(args) {
			return args[i]
		}
		return ""
	}
	num := func(i int) int { return number(t, arg(i)) }
	fence := m.Fence()
	for _, a := range args {
		if v, ok := strings.CutPrefix(a, "term="); ok {
			fence.Term = uint64(number(t, v))
		}
	}
	has := func(word string) bool {
		for _, a := range args {
			if a == word {
				return true
			}
		}
		return false
	}
	node := kevlard.NodeID(arg(0))
	switch what {
	case "route":
		var r kevlard.Route
		for _, a := range args {
			h := kevlard.Hop{}
			name, span, _ := strings.Cut(a, ":")
			h.Node = kevlard.NodeID(name)
			lo, hi, _ := strings.Cut(span, "-")
			h.Layers = kevlard.Layers{Lo: number(t, lo), Hi: number(t, hi)}
			r = append(r, h)
		}
		if !m.WantsRoute(now) {
			t.Fatalf("at %v: a route for a session that wants none", now)
		}
		return m.SetRoute(now, r, "c", nil, nil, nil)
	case "noroute":
		return m.NoRoute(now, []kevlard.Layers{{Lo: 2, Hi: 4}}, nil)
	case "blamed": // there is a route, but only over blamed nodes
		return m.NoRoute(now, nil, nil)
	case "hurry":
		m.Hurry(now)
	case "prepared":
		return m.Prepared(now, node, protocol.Prepared{Session: "s", Fence: fence, Lo: num(1), Have: num(2)}, nil)
	case "waits":
		return m.Prepared(now, node, protocol.Prepared{Session: "s", Fence: fence, Lo: num(1), Waits: true}, nil)
	case "refuses":
		return m.Prepared(now, node, protocol.Prepared{Session: "s", Fence: fence, Lo: num(1), Refusal: protocol.Refusal(arg(2)), Detail: "said so"}, nil)
	case "step":
		s := protocol.Step{Session: "s", Fence: fence, Next: num(1)}
		if v, ok := strings.CutPrefix(arg(2), "token="); ok {
			s.Sampled, s.Token = true, kevlard.Token(number(t, v))
		}
		if v, ok := strings.CutPrefix(arg(3), "logprob="); ok {
			s.Logprobs = &kevlard.Logprobs{Chosen: -float32(number(t, v))}
		}
		return m.Step(now, node, s, nil)
	case "lost":
		return m.Lost(now, node, protocol.Lost{Session: "s", Fence: fence, Lo: num(1), Cause: arg(2), Suspect: has("suspect")}, nil)
	case "refused":
		return m.Refused(now, protocol.Refused{Session: "s", Fence: fence, Lo: num(0), Pos: num(1), Reason: protocol.Refusal(arg(2))}, nil)
	case "probed":
		p := protocol.Probed{Session: "s", Fence: fence, Lo: num(1), Round: m.probe.round, Known: !has("unknown"), Stalled: has("stalled")}
		if p.Known {
			p.Received, p.Done = num(2), num(3)
		}
		m.Probed(node, p)
	case "evidence":
		return m.Evidence(now, node, arg(1), nil)
	case "wake":
		return m.Wake(now, nil)
	case "late":
		late, err := time.ParseDuration(arg(0))
		if err != nil {
			t.Fatal(err)
		}
		m.Forgive(now, late)
	case "cancel":
		return m.Cancel(now, nil)
	case "pause":
		return m.Pause(now, nil)
	case "resume":
		return m.Resume(now, nil)
	case "forget":
		return m.Forget(nil)
	default:
		t.Fatalf("unknown command %q", what)
	}
	return nil
}

func show(e Effect) string {
	switch e := e.(type) {
	case Send:
		switch p := e.Message.(type) {
		case protocol.Prepare:
			flags := ""
			if p.Solo {
				flags += " solo"
			}
			if p.Recovery {
				flags += " recovery"
			}
			if p.Await > 0 && p.Await != len(p.Tokens)-1 { // else the first stage is asked, which is plain
				flags += fmt.Sprintf(" await=%d", p.Await)
			}
			return fmt.Sprintf("  prepare %s %v %v tokens=%d positions=%d next=%q last=%v%s", e.To, p.Fence, p.Stage.Layers, len(p.Tokens), p.Positions, p.Next, p.Last, flags)
		case protocol.Close:
			keep := ""
			if p.Keep {
				keep = " keep"
			}
			return fmt.Sprintf("  close %s %v lo=%d%s", e.To, p.Fence, p.Lo, keep)
		case protocol.Probe:
			return fmt.Sprintf("  probe %s %v lo=%d round=%d", e.To, p.Fence, p.Lo, p.Round)
		}
		return fmt.Sprintf("  send %s %+v", e.To, e.Message)
	case SendFrame:
		it := e.Frame.Items[0]
		return fmt.Sprintf("  frame %s %v [%d,%d) start=%v sample=%v", e.To, it.Fence, it.Pos, it.End(), it.Start, it.Sample)
	case Emit:
		if e.Logprobs != nil {
			return fmt.Sprintf("  emit %d: %d logprob %v", e.Index, e.Token, e.Logprobs.Chosen)
		}
		return fmt.Sprintf("  emit %d: %d", e.Index, e.Token)
	case Finish:
		if e.Err != nil {
			return fmt.Sprintf("  finish %s: %d %v", e.Reason, e.Err.Status, e.Err)
		}
		return "  finish " + e.Reason
	case Reused:
		return fmt.Sprintf("  reused %d", e.Positions)
	case Note:
		return fmt.Sprintf("  note %s node=%q cause=%s %s took=%v", e.Type, e.Node, e.Cause, e.Detail, e.Took)
	}
	return fmt.Sprintf("  %T", e)
}

func state(m *Machine) string {
	if m.State() == Done {
		return fmt.Sprintf("  done, failovers %d", len(m.Failovers()))
	}
	s := fmt.Sprintf("  %s %v", m.State(), m.Fence())
	if m.Deadline() != kevlard.Never {
		s += fmt.Sprintf(", deadline %v", time.Duration(m.Deadline()))
	}
	if m.State() == Routing || m.State() == Preparing {
		s += fmt.Sprintf(", gives up %v", time.Duration(m.giveUp))
	}
	if m.fenced > 0 {
		s += fmt.Sprintf(", fenced %d", m.fenced)
	}
	return s
}
