package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"github.com/kevlard/kevlard/membership"
)

const operatingGuide = "../../docs/operating.md"

// configTable is the guide's table of keys, as the program has them.
func configTable() string {
	cfg := config.Defaults()
	cfg.Control.Socket = systemSocket
	var b strings.Builder
	b.WriteString("| key | default | taken over at SIGHUP | what |\n|---|---|---|---|\n")
	for _, f := range cfg.Fields() {
		value := ""
		if text := f.Text(); text != "" {
			value = "`" + text + "`"
		}
		live := string(f.Live)
		if live == "" {
			live = "no"
		}
		doc := f.Doc
		if f.Inert() {
			live, doc = "", "no effect yet"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Key, value, live, doc)
	}
	return b.String()
}

// TestGuideListsKeys checks that the guide has every key with its default, and whether
// a reload takes it over.
func TestGuideListsKeys(t *testing.T) {
	text, err := os.ReadFile(operatingGuide)
	if err != nil {
		t.Fatal(err)
	}
	if want := configTable(); !strings.Contains(string(text), want) {
		t.Errorf("%s lacks this table, or part of it:\n%s", operatingGuide, want)
	}
}

// TestGuideExamples checks that each TOML example of the guide is accepted as it is.
func TestGuideExamples(t *testing.T) {
	text, err := os.ReadFile(operatingGuide)
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```toml\n(.*?)```").FindAllSubmatch(text, -1)
	if len(examples) == 0 {
		t.Error("there are none")
	}
	for _, e := range examples {
		loaded, problems := config.Load(config.Source{Defaults: config.Defaults(), File: operatingGuide, Data: e[1]})
		if len(problems)+len(loaded.Warnings) > 0 {
			t.Errorf("%v %v in\n%s", problems, loaded.Warnings, e[1])
		}
	}
}

// detectionTable is the guide's table of derived detection times.
func detectionTable(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| members | `lan`: first, everyone | `wan`: first, everyone | memberlist's LAN settings |\n|---|---|---|---|\n")
	for _, n := range []int{3, 8, 16, 32, 64, 100, 256, 1000} {
		fmt.Fprintf(&b, "| %d |", n)
		for _, settings := range []string{"lan", "wan", membership.MemberlistLAN} {
			first, everyone, err := membership.Detection(settings, n, 0.5)
			if err != nil {
				t.Fatal(err)
			}
			first99, everyone99, err := membership.Detection(settings, n, 0.99)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, " %.1f / %.1f s, %.1f / %.1f s |", first.Seconds(), first99.Seconds(), everyone.Seconds(), everyone99.Seconds())
		}
		b.WriteString("\n")
	}
	return b.String()
}

// TestGuideDerivesDetection checks that the guide's detection times are those of the
// profiles.
func TestGuideDerivesDetection(t *testing.T) {
	text, err := os.ReadFile(operatingGuide)
	if err != nil {
		t.Fatal(err)
	}
	if want := detectionTable(t); !strings.Contains(string(text), want) {
		t.Errorf("%s lacks this table, or part of it:\n%s", operatingGuide, want)
	}
}
