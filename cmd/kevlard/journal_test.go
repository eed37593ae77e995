package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// TestJournalLines runs an agent whose stderr is the journal's stream, as far as a
// program can tell: each line begins with a priority and has no time of its own. With
// another stream in JOURNAL_STREAM, which a terminal may inherit, it has a time and no
// priority.
func TestJournalLines(t *testing.T) {
	for _, journal := range []bool{true, false} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		stat, err := w.Stat()
		if err != nil {
			t.Fatal(err)
		}
		of := stat.Sys().(*syscall.Stat_t)
		stream := fmt.Sprintf("%d:%d", of.Dev, of.Ino)
		if !journal {
			stream = "1:1"
		}
		dir := t.TempDir()
		if err := os.WriteFile(dir+"/secret", []byte(strings.Repeat("a", 64)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/keys", []byte("alice:"+strings.Repeat("a", 64)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		// It warns that API keys travel in the clear, and cannot start: this host lacks
		// the address.
		listen, _ := listenFlags(t)
		cmd := exec.Command(os.Args[0], append([]string{
			"agent", "--ring-secret-file", dir + "/secret", "--node-data-dir", dir + "/data", "--node-role", "gateway", "--ring-dev",
			"--control", dir + "/sock", "--api-keys-file", dir + "/keys",
		}, append(listen, "--api-listen", "192.0.2.1:1")...)...)
		cmd.Env = append(os.Environ(), asProgram+"=1", "JOURNAL_STREAM="+stream)
		cmd.Stderr = w
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		out, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		if code := cmd.ProcessState.ExitCode(); code != 1 && code != 2 {
			t.Errorf("exit code %d\n%s", code, out)
		}
		good := regexp.MustCompile(`^(time=\S+ level=|kevlard: )`)
		if journal {
			good = regexp.MustCompile(`^(<[3-7]>level=|<3>kevlard: |<4>kevlard: warning: )`)
		}
		for _, line := range lines {
			if !good.MatchString(line) {
				t.Errorf("journal %v: %q", journal, line)
			}
		}
		if !strings.Contains(string(out), "level=WARN") {
			t.Errorf("no line of the log in\n%s", out)
		}
		if last := lines[len(lines)-1]; !strings.Contains(last, "192.0.2.1") {
			t.Errorf("the last line does not say why it ended: %q", last)
		}
	}
}
