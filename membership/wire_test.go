package membership

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
)

var messages = []struct {
	kind byte
	v    any
}{
	{kindClaim, claim{Nonce: 1, Name: "a", Peer: "p", Boot: "b", Addr: "10.0.0.1:1", Stream: true}},
	{kindVerdict, verdict{Nonce: 1, From: "b"}},
	{kindVerdict, verdict{Nonce: 1<<64 - 1, From: "b", Shows: showsOther, Peer: "q", Addr: "10.0.0.2:1", State: StateDead}},
	{kindGone, gone{Name: "a", Boot: "b", Forced: true, Age: time.Hour}},
	{kindSync, syncState{}},
	{kindSync, syncState{
		Gone:  []gone{{Name: "a", Boot: "b"}},
		Tombs: []tomb{{Name: "c", Peer: "p", Boot: "d", Addr: "10.0.0.3:1", Age: time.Minute}},
	}},
}

func TestMessagesRoundTrip(t *testing.T) {
	for _, m := range messages {
		got, err := decode(encode(m.kind, m.v))
		if err != nil || !reflect.DeepEqual(got, m.v) {
			t.Errorf("%T: got %+v, %v, want %+v", m.v, got, err, m.v)
		}
	}
	if v, err := decode([]byte{99, 1, 2}); v != nil || err != nil {
		t.Errorf("a kind of a later build: %v, %v, want neither", v, err)
	}
}

func TestBadMessages(t *testing.T) {
	esc := kevlard.NodeID("a\x1b")
	for name, b := range map[string][]byte{
		"empty":        {},
		"no body":      {kindClaim},
		"name":         encode(kindClaim, claim{Name: esc, Peer: "p", Boot: "b", Addr: "a"}),
		"no address":   encode(kindClaim, claim{Name: "a", Peer: "p", Boot: "b"}),
		"verdict":      encode(kindVerdict, verdict{From: "a", Shows: 4}),
		"state":        encode(kindVerdict, verdict{From: "a", Shows: showsOther, Peer: "p", Addr: "a", State: "x"}),
		"negative age": encode(kindGone, gone{Name: "a", Boot: "b", Age: -1}),
		"tomb age":     encode(kindSync, syncState{Tombs: []tomb{{Name: "c", Peer: "p", Boot: "d", Addr: "a", Age: -1}}}),
		"too many":     encode(kindSync, syncState{Gone: make([]gone, 2*maxSync+1)}),
		"too long":     append(encode(kindGone, gone{Name: "a", Boot: "b"}), make([]byte, maxMessage)...),
	} {
		if v, err := decode(b); err == nil {
			t.Errorf("%s: decoded to %+v", name, v)
		}
	}
}

// The largest push/pull part that we send is one that we accept, and user
// messages fit a gossip packet.
func TestMessagesFit(t *testing.T) {
	var s syncState
	for i := range maxSync {
		name := kevlard.NodeID(fmt.Sprintf("%0*d", maxName, i))
		boot := kevlard.BootID(strings.Repeat("b", maxBoot))
		s.Gone = append(s.Gone, gone{Name: name, Boot: boot, Forced: true, Age: tombAge})
		s.Tombs = append(s.Tombs, tomb{Name: name, Peer: strings.Repeat("p", maxPeer), Boot: boot, Addr: strings.Repeat("a", maxAddr), Age: tombAge})
	}
	if _, err := decode(encode(kindSync, s)); err != nil {
		t.Error(err)
	}
	long := claim{
		Nonce: 1<<64 - 1, Name: kevlard.NodeID(strings.Repeat("n", maxName)), Peer: strings.Repeat("p", maxPeer),
		Boot: kevlard.BootID(strings.Repeat("b", maxBoot)), Addr: strings.Repeat("a", maxAddr),
	}
	if n := len(encode(kindClaim, long)); n > maxMessage {
		t.Errorf("the longest claim has %d bytes, over %d", n, maxMessage)
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range messages {
		f.Add(encode(m.kind, m.v))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := decode(b)
		if err != nil || v == nil {
			return
		}
		again, err := decode(encode(b[0], v))
		if err != nil || fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", v) {
			t.Fatalf("%+v encodes to %+v, %v", v, again, err)
		}
		// Whatever was decoded can be applied.
		tab := newTable("self", Meta{Peer: "p", Boot: "b"})
		switch m := v.(type) {
		case claim:
			tab.shows(m)
		case gone:
			tab.farewell(m, time.Now())
		case syncState:
			tab.merge(m, time.Now())
			if n := len(tab.members()); n > len(m.Tombs) {
				t.Fatalf("%d members of %d tombs", n, len(m.Tombs))
			}
		}
	})
}

func TestPeersFile(t *testing.T) {
	dir, now := t.TempDir(), time.Now().UTC()
	want := map[kevlard.NodeID]remembered{
		"a": {Name: "a", Peer: "pa", Addr: "10.0.0.1:1", Seen: now},
		"b": {Name: "b", Peer: "pb", Addr: "[fd00::1]:1", Seen: now.Add(-rememberFor / 2)},
	}
	old := maps.Clone(want)
	old["c"] = remembered{Name: "c", Peer: "pc", Addr: "10.0.0.3:1", Seen: now.Add(-rememberFor)}
	if err := savePeers(dir, old); err != nil {
		t.Fatal(err)
	}
	got, err := loadPeers(dir, now)
	if err != nil || !maps.EqualFunc(got, want, func(a, b remembered) bool { return a.Seen.Equal(b.Seen) && a.Addr == b.Addr && a.Peer == b.Peer }) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, %v, want %s alone", files, err, peersFile)
	}
	if info, err := files[0].Info(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", info.Mode(), err)
	}
	if got, err := loadPeers(t.TempDir(), now); err != nil || len(got) != 0 {
		t.Errorf("no file: %v, %v", got, err)
	}
	for _, bad := range []string{"", "{", `{"version":2}`, `{"version":1,"peers":[{"name":"a b","peer":"p","addr":"x:1"}]}`, strings.Repeat(" ", maxPeersFile+1)} {
		if err := os.WriteFile(filepath.Join(dir, peersFile), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := loadPeers(dir, now); err == nil || got == nil || len(got) != 0 {
			t.Errorf("%.20q: got %v, %v, want none and an error", bad, got, err)
		}
	}
	if err := savePeers(filepath.Join(dir, "missing"), want); err == nil {
		t.Error("saved into a directory that does not exist")
	}
}

func FuzzPeers(f *testing.F) {
	f.Add([]byte(`{"version":1,"peers":[{"name":"a","peer":"p","addr":"10.0.0.1:1","seen":"2026-01-01T00:00:00Z"}]}`))
	f.Add([]byte(`{"version":1,"peers":null}`))
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, b []byte) {
		peers, err := decodePeers(bytes.Clone(b), now)
		if err == nil && len(peers) > maxRemembered {
			t.Fatalf("%d peers", len(peers))
		}
		for name, p := range peers {
			if p.Name != name || checkName(string(name)) != nil || now.Sub(p.Seen) >= rememberFor {
				t.Fatalf("%+v under %s", p, name)
			}
		}
	})
}
