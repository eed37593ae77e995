package daemon

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/membership"
	"github.com/kevlard/kevlard/protocol"
)

// documents lists what members send each other in JSON, each empty.
func documents() []checked {
	return []checked{
		&drainCall{}, &findCall{}, &whereabouts{}, &linkCall{}, &linkAnswer{}, &clockAnswer{}, &keysCall{}, &keysAnswer{}, &sessionsAnswer{of: "n"},
	}
}

// examples has a right one of each.
func examples() []checked {
	return []checked{
		&drainCall{Undo: true}, &findCall{Session: "01J"}, &whereabouts{Owned: true, Running: true, Recorded: true, Epoch: 3, Envelope: []byte("e")},
		&linkCall{"n", "01J"}, &linkAnswer{true, true}, &clockAnswer{UnixNS: 1},
		&keysCall{Do: keysAdd, Secret: make([]byte, membership.SecretSize), ID: "a"}, &keysAnswer{Secrets: []string{"a", "b"}, Configured: "a"},
		&sessionsAnswer{Sessions: report.Sessions{Sessions: []report.Session{{
			ID: "01J", Model: "sha256:00", Owner: "n", State: "decode", Route: []string{"n"}, Standbys: [][]string{{"m"}, {}}, ReplicatedThrough: []int{1, 0}, Witnesses: []string{"m"},
		}}}, of: "n"},
	}
}

func TestCallsRoundTrip(t *testing.T) {
	for i, want := range examples() {
		b, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got := documents()[i]
		if err := readCall("it", b, got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%T: read %+v, %v", want, got, err)
		}
	}
}

// TestBadCalls: what no honest member sends is named, and not worked with.
func TestBadCalls(t *testing.T) {
	long := strings.Repeat("x", protocol.MaxID+1)
	session := func(edit func(*report.Session)) *sessionsAnswer {
		s := examples()[8].(*sessionsAnswer)
		edit(&s.Sessions.Sessions[0])
		return s
	}
	for want, bad := range map[string]checked{
		"session is":          &findCall{},
		"want 1 to 128 bytes": &findCall{Session: "x\x1b[2J"},
		"envelope of 65537":   &whereabouts{Envelope: make([]byte, protocol.MaxEnvelope+1)},
		"node is":             &linkCall{"", "01J"},
		"boot is":             &linkCall{"n", ""},
		"3 secrets":           &keysAnswer{Secrets: []string{"a", "b", "c"}},
		"secret's id is":      &keysAnswer{Secrets: []string{long}},
		"configured secret's": &keysAnswer{Configured: "\n"},
		"owner is \"o\"":      session(func(s *report.Session) { s.Owner = "o" }),
		"id is":               session(func(s *report.Session) { s.ID = "\x1b]0;x\x07" }),
		"state is":            session(func(s *report.Session) { s.State = long }),
		"of more than 256":    session(func(s *report.Session) { s.Route = make([]string, protocol.MaxHops+1) }),
		"session 0: node is":  session(func(s *report.Session) { s.Standbys = [][]string{{"a\rb"}} }),
	} {
		b, err := json.Marshal(bad)
		if err != nil {
			t.Fatal(err)
		}
		into := reflect.New(reflect.TypeOf(bad).Elem()).Interface().(checked)
		if s, ok := into.(*sessionsAnswer); ok {
			s.of = "n"
		}
		if err := readCall("it", b, into); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%T: %v does not say %q", bad, err, want)
		}
	}
	if err := readCall("it", make([]byte, maxCall+1), &drainCall{}); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("too long: %v", err)
	}
	secret := strings.Repeat("s3cret", 9)
	for _, b := range []string{`{"do":"add","secret":"` + secret, `{"do":"add","secret":17}`, `{"secret":"` + secret + `AA"}`, `{"id":"` + secret + long + `"}`} {
		if err := readCall("the keys call", []byte(b), &keysCall{}); err == nil || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "17") {
			t.Errorf("%s: %v", b, err)
		}
	}
}

// FuzzCalls reads every document that members send each other: none makes this node panic,
// one that is taken holds what check promises, and says the same when it is sent on.
func FuzzCalls(f *testing.F) {
	for i, x := range examples() {
		b, err := json.Marshal(x)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(i), b)
	}
	f.Add(byte(5), []byte(`{"unix_ns":-9223372036854775808}`))
	f.Add(byte(6), []byte(`{"do":"add","secret":"AAAA"}`))
	f.Add(byte(8), []byte(`{"sessions":[{"id":"a","model":"m","state":"s","owner":"n","standbys":[null,["\u001b"]]}]}`))
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		all := documents()
		v := all[int(kind)%len(all)]
		if readCall("it", b, v) != nil {
			return
		}
		if err := v.check(); err != nil {
			t.Fatalf("taken, and refused when looked at again: %v", err)
		}
		again, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		w := documents()[int(kind)%len(all)]
		if err := readCall("it", again, w); err != nil && len(again) <= maxCall {
			t.Fatalf("taken, and not when it is sent on: %v", err)
		}
		switch v := v.(type) {
		case *clockAnswer: // what it is for must bear any value
			now := time.Now()
			if c := compareClocks(now, now, time.Unix(0, v.UnixNS)); math.IsNaN(c.OffsetMS) || c.WithinMS != 0 {
				t.Fatalf("compared as %+v", c)
			}
		case *keysCall:
			s := &secrets{configured: make([]byte, membership.SecretSize), keys: keyring{make([]byte, membership.SecretSize)}}
			_, _ = s.do(*v) // FuzzKeyring looks at what it leaves
			if membership.CheckSecrets(s.keys) != nil {
				t.Fatalf("%+v leaves a bad keyring", v.Do)
			}
		case *keysAnswer:
			n := report.NodeKeys{Node: "n", State: "alive", Secrets: v.Secrets}
			_ = keysAllowed(report.Keys{Nodes: []report.NodeKeys{n}}, keysUse, v.Configured)
		}
	})
}
