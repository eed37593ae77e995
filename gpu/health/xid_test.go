package health

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseXid(t *testing.T) {
	for _, c := range []struct {
		line string
		want Xid // zero: no Xid
	}{
		{"NVRM: Xid (PCI:0000:3b:00): 48, pid=4711, name=kevlard, An uncorrectable double bit error (DBE) has been detected on GPU", Xid{"0000:3b:00", 48, "pid=4711, name=kevlard, An uncorrectable double bit error (DBE) has been detected on GPU"}},
		{"[1231741.378609] NVRM: Xid (PCI:0009:01:00): 43, pid=3188489, name=trigger_xid, channel 0x0b00000a", Xid{"0009:01:00", 43, "pid=3188489, name=trigger_xid, channel 0x0b00000a"}},
		{"Oct  1 13:00:00 host kernel: NVRM: Xid (0000:03:00): 14, Channel 00000001", Xid{"0000:03:00", 14, "Channel 00000001"}},
		{"NVRM: Xid (PCI:0000:b6:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", Xid{"0000:b6:00", 154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"}},
		{"NVRM: Xid (PCI:0000:3B:00.0): 79", Xid{"0000:3b:00", 79, ""}},
		{"NVRM: GPU at PCI:0000:3b:00: GPU-b850f46d", Xid{}},
		{"NVRM: Xid (PCI:0000:3b:00): pid=12", Xid{}},
		{"NVRM: Xid (PCI:0000:3b:00): 0, x", Xid{}},
		{"NVRM: Xid (PCI:0000:3b:00): 99999999, x", Xid{}},
		{"NVRM: Xid (PCI:zz:3b:00): 48, x", Xid{}},
		{"NVRM: Xid (PCI:0000:3b:00) 48, x", Xid{}},
		{"", Xid{}},
	} {
		got, ok := ParseXid(c.line)
		if ok != (c.want != Xid{}) || got != c.want {
			t.Errorf("%q: %+v, %t: want %+v", c.line, got, ok, c.want)
		}
	}
}

func TestMeanings(t *testing.T) {
	for state, codes := range map[State][]int{
		Drain: {46, 48, 62, 64, 79, 95, 119, 120, 140, 143, 158, 171, 172},
		Avoid: {63, 74, 92, 94, 145, 156},
		OK:    {8, 13, 31, 32, 39, 43, 45, 68, 69, 106, 121, 141, 500},
	} {
		for _, code := range codes {
			if got := meaningOf(Xid{Code: code}); got.state != state || got.what == "" {
				t.Errorf("Xid %d asks for %s (%q): want %s", code, got.state, got.what, state)
			}
		}
	}
	for text, state := range map[string]State{
		"GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)":   Drain,
		"GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)": Drain,
		"GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)":      Drain,
		"GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)":            Avoid,
		"GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)":   OK,
		"something that no driver of today says":                                    Drain,
		"":                                                                          Drain,
	} {
		if got := meaningOf(Xid{Code: 154, Text: text}); got.state != state {
			t.Errorf("%q asks for %s: want %s", text, got.state, state)
		}
	}
}

func TestSamePCI(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"00000000:3B:00.0", "0000:3b:00", true},
		{"3b:00.0", "0000:3B:00.0", true},
		{"0000:3b:00.0", "0001:3b:00.0", false},
		{"", "", false},
	} {
		if got := SamePCI(c.a, c.b); got != c.want {
			t.Errorf("%q and %q: %t", c.a, c.b, got)
		}
	}
}

func FuzzParseXid(f *testing.F) {
	f.Add("NVRM: Xid (PCI:0000:3b:00): 48, pid=4711, name=kevlard, text")
	f.Add("NVRM: Xid (PCI:0000:b6:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
	f.Add("NVRM: Xid (0000:03:00): 14, " + strings.Repeat("\xff", 500))
	f.Fuzz(func(t *testing.T, line string) {
		x, ok := ParseXid(line)
		if !ok {
			if x != (Xid{}) {
				t.Fatalf("%+v of a line that is none", x)
			}
			return
		}
		if x.Code < 1 || x.Code > 65535 || len(x.Text) > maxText || !utf8.ValidString(x.Text) || !SamePCI(x.PCI, x.PCI) {
			t.Fatalf("%+v", x)
		}
		meaningOf(x)
		again, ok := ParseXid("NVRM: Xid (PCI:" + x.PCI + "): " + "48, " + x.Text)
		if !ok || again.PCI != x.PCI || again.Text != x.Text {
			t.Fatalf("%+v reads back as %+v, %t", x, again, ok)
		}
	})
}
