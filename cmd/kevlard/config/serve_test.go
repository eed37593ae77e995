package config

import (
	"slices"
	"strings"
	"testing"
)

func TestServe(t *testing.T) {
	for _, tt := range []struct {
		toml string
		want []Serve
		bad  string
	}{
		{`[{name = "m", share = 3}, {name = "n:1b"}]`, []Serve{{"m", 3}, {"n:1b", 1}}, ""},
		{`[]`, nil, ""},
		{`"m"`, nil, "want an array"},
		{`["m"]`, nil, "entry 1"},
		{`[{name = "m", weight = 1}]`, nil, "weight"},
		{`[{share = 1}]`, nil, "name is empty"},
		{`[{name = "m", share = 0}]`, nil, "share = 0"},
		{`[{name = "m", share = 1001}]`, nil, "1001"},
		{`[{name = "m"}, {name = "m"}]`, nil, "named before"},
	} {
		loaded, problems := load("[ring]\nsecret_file = \"/s\"\n[models]\nserve = "+tt.toml, nil, nil)
		text := ""
		for _, p := range problems {
			if strings.Contains(p, "models.serve") {
				text += p
			}
		}
		if (tt.bad == "") != (text == "") || !strings.Contains(text, tt.bad) {
			t.Errorf("%s: problems %q, want %q", tt.toml, text, tt.bad)
		}
		if got := loaded.Config.Models.Serve; tt.bad == "" && !slices.Equal(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.toml, got, tt.want)
		}
		if got := parseServeText(serveText(tt.want)); !slices.Equal(got, tt.want) {
			t.Errorf("%+v as text is %+v", tt.want, got)
		}
	}
	if got := parseServeText("m, n:2"); !slices.Equal(got, []Serve{{"m", 1}, {"n", 2}}) {
		t.Errorf("%+v", got)
	}
}
