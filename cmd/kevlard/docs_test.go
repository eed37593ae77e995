package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kevlard/kevlard/cmd/kevlard/config"
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
