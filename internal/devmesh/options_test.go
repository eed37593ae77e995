package devmesh

import (
	"context"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
)

func TestSplitLayersIsEvenAndComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		layers := rapid.IntRange(1, 200).Draw(t, "layers")
		n := rapid.IntRange(1, layers).Draw(t, "n")
		at, least, most := 0, layers, 0
		for _, l := range splitLayers(layers, n) {
			if l.Lo != at || l.Len() < 1 {
				t.Fatalf("range %s after %d", l, at)
			}
			at, least, most = l.Hi, min(least, l.Len()), max(most, l.Len())
		}
		if at != layers || most-least > 1 {
			t.Fatalf("covers %d of %d layers, lengths %d to %d", at, layers, least, most)
		}
	})
}

func TestPlanPlacesNodesByTheContract(t *testing.T) {
	o := Options{Exe: "kevlard", Nodes: 4, Stages: 2, Gateways: 1, BasePort: 20000}.withDefaults()
	specs, err := plan(o, "/d", 8)
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		name, role, api, bulk string
		layers                kevlard.Layers
	}{
		{"node-1", "host", "127.0.0.11:20000", "127.0.0.11:20003", kevlard.Layers{Lo: 0, Hi: 4}},
		{"node-2", "host", "127.0.0.12:20000", "127.0.0.12:20003", kevlard.Layers{Lo: 4, Hi: 8}},
		{"node-3", "host", "127.0.0.13:20000", "127.0.0.13:20003", kevlard.Layers{Lo: 0, Hi: 4}},
		{"node-4", "host", "127.0.0.14:20000", "127.0.0.14:20003", kevlard.Layers{Lo: 4, Hi: 8}},
		{"gateway-1", "gateway", "127.0.0.15:20000", "127.0.0.15:20003", kevlard.Layers{}},
	}
	if len(specs) != len(want) {
		t.Fatalf("%d specs, want %d", len(specs), len(want))
	}
	for i, w := range want {
		s := specs[i]
		if s.name != w.name || s.role != w.role || s.addr(0) != w.api || s.addr(3) != w.bulk || s.layers != w.layers {
			t.Errorf("node %d is %+v, want %+v", i+1, s, w)
		}
		if s.socket() != "/d/"+w.name+"/kevlard.sock" {
			t.Errorf("socket %s", s.socket())
		}
	}
}

func TestBadOptionsNameTheFlag(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
		want string
	}{
		{"no nodes", Options{Nodes: -1}, "--nodes -1: want at least 1"},
		{"more stages than nodes", Options{Nodes: 2, Stages: 3}, "--stages 3: want 1 to 2 (--nodes)"},
		{"too many", Options{Nodes: 200, Gateways: 100}, "want at most 240 together"},
		{"low port", Options{BasePort: 80}, "--base-port 80: want 1024 to 65532"},
		{"high port", Options{BasePort: 65533}, "--base-port 65533: want 1024 to 65532"},
		{"negative restart", Options{Restart: -1}, "--restart -1ns: want 0 or more"},
		{"no binary", Options{}, "no kevlard binary given"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name != "no binary" {
				c.o.Exe = "kevlard"
			}
			_, err := Start(context.Background(), c.o)
			if !isOptionsError(err) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestPlanRefusesWhatDoesNotFit(t *testing.T) {
	o := Options{Nodes: 9, Stages: 9}.withDefaults()
	if _, err := plan(o, "/d", 8); !isOptionsError(err) || !strings.Contains(err.Error(), "the model has 8 layers") {
		t.Errorf("nine stages of eight layers: %v", err)
	}
	o = Options{}.withDefaults()
	if _, err := plan(o, "/"+strings.Repeat("d", 100), 8); !isOptionsError(err) || !strings.Contains(err.Error(), "control socket") {
		t.Errorf("long directory: %v", err)
	}
}

func isOptionsError(err error) bool {
	_, ok := errors.AsType[*OptionsError](err)
	return ok
}

func TestPlanGivesGatewaysTheirStandbysAndNodesTheirGroups(t *testing.T) {
	o := Options{Exe: "kevlard", Nodes: 1, Gateways: 3, Standbys: 1, GatewayStandbys: []int{0, 2}, GroupBase: 500}.withDefaults()
	if err := o.validate(); err != nil {
		t.Fatal(err)
	}
	specs, err := plan(o, "/d", 8)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []any{1, 0, 2, 1} {
		if got := specs[i].kv["standbys"]; got != want || specs[i].group != 500+i {
			t.Errorf("%s has standbys %v, group %d; want %v, %d", specs[i].name, got, specs[i].group, want, 500+i)
		}
	}
	o.Hot = true
	if specs, err = plan(o, "/d", 8); err != nil || specs[0].kv["standby"] != "hot" || specs[1].kv["standby"] != nil {
		t.Errorf("hot copies: %+v, %v", specs, err)
	}
	o.SkipAddresses = 5
	if specs, err = plan(o, "/d", 8); err != nil || specs[0].ip != "127.0.0.16" || specs[3].ip != "127.0.0.19" {
		t.Errorf("with 5 addresses left out: %+v, %v", specs, err)
	}
	o.SkipAddresses = 237
	if err := o.validate(); err == nil || !strings.Contains(err.Error(), "237 addresses skipped: want at least 0, and at most 240 with all nodes") {
		t.Errorf("more addresses than there are: %v", err)
	}
	o.SkipAddresses, o.GatewayStandbys = 0, make([]int, 4)
	if err := o.validate(); err == nil || !strings.Contains(err.Error(), "standbys of 4 gateways given: want at most 3") {
		t.Errorf("more standbys than gateways: %v", err)
	}
	if specs, err = plan(Options{Exe: "kevlard"}.withDefaults(), "/d", 8); err != nil || specs[0].kv["standbys"] != 1 || specs[0].group != 0 {
		t.Errorf("by default: %+v, %v", specs[0], err)
	}
}
