package systemd

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// number returns a numeric property of a unit.
func (h *host) number(property, unit string) int {
	h.t.Helper()
	n, err := strconv.Atoi(h.show(unit, property))
	h.must(err)
	return n
}

// rss returns the resident memory of the unit's daemon, and of its engines.
func (h *host) rss(unit string) string {
	h.t.Helper()
	of := func(pid int) int {
		for line := range strings.Lines(h.run("cat", fmt.Sprintf("/proc/%d/status", pid))) {
			if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				n, _ := strconv.Atoi(strings.Fields(rest)[0])
				return n
			}
		}
		return 0
	}
	engines := 0
	for _, pid := range enginePIDs(h) {
		engines += of(pid)
	}
	return fmt.Sprintf("%.1f MB (its engines: %.1f MB)", float64(of(h.number("MainPID", unit)))/1024, float64(engines)/1024)
}

// enginePIDs returns the engines that the host's daemon has now.
func enginePIDs(h *host) []int {
	for _, m := range h.members() {
		if m.Name == h.name {
			var pids []int
			for _, e := range m.Engines {
				pids = append(pids, e.PID)
			}
			return pids
		}
	}
	return nil
}

// procRoot is the host's own root, with its own /proc.
func (h *host) procRoot() string { return fmt.Sprintf("/proc/%d/root", h.leader) }

// reused reports whether a pid that exists is not what it was: the kernel gave the
// number to another process, which is none of the daemon's old engines.
func reused(h *host, pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("%s/proc/%d/cmdline", h.procRoot(), pid))
	return err != nil || !strings.Contains(string(stat), "engine") || slices.Contains(enginePIDs(h), pid)
}

type session struct {
	State string
	Route []string
}

// live returns the sessions that the node owns and that compute now.
func (h *host) live() []session {
	out, err := h.try("kevlard", "sessions", "-o", "json")
	var doc struct{ Sessions []session }
	if err != nil || json.Unmarshal([]byte(out), &doc) != nil {
		return nil
	}
	return slices.DeleteFunc(doc.Sessions, func(s session) bool { return s.State == "paused" || s.State == "idle" || s.State == "queued" })
}

// sessions returns how many of them there are.
func (h *host) sessions() int { return len(h.live()) }

// routed returns how many of them have a stage on the named node.
func (h *host) routed(name string) int {
	return len(slices.DeleteFunc(h.live(), func(s session) bool { return !slices.Contains(s.Route, name) }))
}

// streams starts that many streams of greedy answers on the node at once. What it returns
// waits for their ends and returns their texts, "" for one that was cut or refused.
func (h *host) streams(n int, prompt string, tokens int) func() []string {
	texts := make([]string, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			out, err := h.try("curl", "-sSN", "--max-time", "280", "http://127.0.0.1:8080/v1/completions", "-H", "Content-Type: application/json",
				"-d", fmt.Sprintf(`{"model":"fairy","prompt":%q,"max_tokens":%d,"temperature":0,"ignore_eos":true,"stream":true}`, prompt, tokens))
			if err != nil || !strings.Contains(out, "data: [DONE]") || strings.Contains(out, `"error"`) {
				h.t.Errorf("stream %d: %v: ...%s", i, err, out[max(0, len(out)-400):])
				return
			}
			for line := range strings.Lines(out) {
				var event struct{ Choices []struct{ Text string } }
				if data, ok := strings.CutPrefix(line, "data: {"); ok && json.Unmarshal([]byte("{"+data), &event) == nil && len(event.Choices) > 0 {
					texts[i] += event.Choices[0].Text
				}
			}
		})
	}
	return func() []string { wg.Wait(); return texts }
}
