package health

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kevlard/kevlard"
)

// gpu is a healthy device.
func gpu(edit ...func(*Device)) Device {
	d := Device{
		Index: 0, UUID: "GPU-0", Name: "NVIDIA H100", Vendor: "nvidia", PCI: "0000:3b:00.0", MemoryTotal: 80 << 30, MemoryFree: 70 << 30, MemoryUsed: 10 << 30,
		Temperature: 60, Slowdown: 87, Shutdown: 92,
	}
	for _, e := range edit {
		e(&d)
	}
	return d
}

// feed gives a policy one reading every two seconds.
type feed struct {
	p   Policy
	now kevlard.Instant
}

func (f *feed) read(r Reading) (Verdict, []Report) {
	f.now = f.now.Add(2 * time.Second)
	v, x := f.p.Judge(f.now, r)
	if len(v) == 0 {
		return Verdict{}, x
	}
	return v[0], x
}

func (f *feed) device(edit ...func(*Device)) Verdict {
	v, _ := f.read(Reading{Devices: []Device{gpu(edit...)}})
	return v
}

func kernel(lines ...string) Reading { return Reading{Devices: []Device{gpu()}, Kernel: lines} }

func TestHealthyIsOK(t *testing.T) {
	var f feed
	for range 100 {
		v := f.device(func(d *Device) { d.Throttle = []string{ThrottlePower} }) // the power cap is usual under load
		if v.State != OK || v.Reason != "" || v.Cause != "" {
			t.Fatalf("%+v", v)
		}
	}
}

// TestXids is the policy's part of K21: what the driver reports of a failing GPU.
func TestXids(t *testing.T) {
	for _, c := range []struct {
		line  string
		state State
		says  string
	}{
		{"NVRM: Xid (PCI:0000:3b:00): 48, pid=1, name=k, DBE", Drain, "Xid 48: an uncorrectable memory error"},
		{"NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper: New row marked for remapping, reset gpu to activate.", Avoid, "Xid 63"},
		{"NVRM: Xid (PCI:0000:3b:00): 94, pid=1, name=k, Contained: DRAM (0x0,0x0)", Avoid, "Xid 94"},
		{"NVRM: Xid (PCI:0000:3b:00): 171, Uncorrectable DRAM error", Drain, "Xid 171"},
		{"NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", Drain, "GPU Reset Required"},
		{"NVRM: Xid (PCI:0000:3b:00): 13, pid=1, name=k, Graphics SM Warp Exception", OK, ""},
		{"NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=k, MMU Fault", OK, ""},
		{"NVRM: Xid (PCI:0000:3b:00): 43, pid=1, name=k, Ch 00000008", OK, ""},
		{"NVRM: Xid (PCI:0000:5e:00): 48, pid=1, name=k, DBE", OK, ""}, // another GPU's
	} {
		var f feed
		f.read(kernel())
		v, reports := f.read(kernel(c.line))
		if v.State != c.state || !strings.Contains(v.Reason, c.says) || len(reports) != 1 {
			t.Errorf("%q: %s (%q), reports %+v: want %s", c.line, v.State, v.Reason, reports, c.state)
		}
		for range 2000 { // over an hour
			v, _ = f.read(kernel())
		}
		if want := map[State]State{Drain: Drain, Avoid: OK, OK: OK}[c.state]; v.State != want || v.Sticky != (want == Drain) {
			t.Errorf("%q: an hour later %+v: want %s", c.line, v, want)
		}
	}
}

func TestRecoveryActionIsTakenBack(t *testing.T) {
	var f feed
	f.read(kernel())
	if v, _ := f.read(kernel("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")); v.State != Drain {
		t.Fatalf("%+v", v)
	}
	if v, _ := f.read(kernel("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")); v.State != OK {
		t.Fatalf("%+v", v)
	}
}

func TestHeat(t *testing.T) {
	var f feed
	at := func(temp int) Verdict { return f.device(func(d *Device) { d.Temperature = temp }) }
	f.device()
	for i := range settleIn {
		if v := at(85); (v.State == Avoid) != (i == settleIn-1) {
			t.Fatalf("reading %d at 85 degrees: %+v", i+1, v)
		}
	}
	for range 100 { // between the two margins nothing changes
		if v := at(82); v.State != Avoid || v.Cause != "temperature" || v.Sticky {
			t.Fatalf("%+v", v)
		}
	}
	began := f.now
	for at(79).State != OK {
	}
	if took := f.now.Sub(began); took < settleOut || took > settleOut+4*time.Second {
		t.Errorf("it was avoided for %v after it had cooled", took)
	}
	for range settleIn - 1 {
		at(91)
	}
	if v := at(91); v.State != Drain || !strings.Contains(v.Reason, "91 degrees") || v.Sticky {
		t.Errorf("%+v", v)
	}
	for range 40 {
		f.device()
	}
	if v := f.device(); v.State != OK {
		t.Errorf("cool for over a minute: %+v", v)
	}
	var unknown feed // a driver that tells no thresholds
	for range 10 {
		if v := unknown.device(func(d *Device) { d.Temperature, d.Slowdown, d.Shutdown = 95, 0, 0 }); v.State != OK {
			t.Fatalf("%+v", v)
		}
	}
}

func TestMemoryErrors(t *testing.T) {
	var f feed
	f.device(func(d *Device) { d.ECCVolatile, d.ECCAggregate = 3, 9 })
	if v := f.device(func(d *Device) { d.ECCVolatile, d.ECCAggregate = 3, 9 }); v.State != OK {
		t.Fatalf("what was there at the start: %+v", v)
	}
	if v := f.device(func(d *Device) { d.ECCVolatile = 4 }); v.State != Drain || !v.Sticky || !strings.Contains(v.Reason, "1 uncorrectable") {
		t.Errorf("a new one: %+v", v)
	}
	var g feed
	if v := g.device(func(d *Device) { d.Pending = true }); v.State != Avoid || v.Cause != "ecc" {
		t.Errorf("pending: %+v", v)
	}
	if v := g.device(func(d *Device) { d.RemapFailed = true }); v.State != Drain {
		t.Errorf("remap failed: %+v", v)
	}
}

func TestLost(t *testing.T) {
	var f feed
	f.device()
	for i := range settleIn {
		v, _ := f.read(Reading{})
		if i == 1 && v.State != OK {
			t.Fatalf("a hiccup: %+v", v)
		}
		if i == settleIn-1 && (v.State != Drain || v.Cause != "lost" || v.Device.Name != "NVIDIA H100") {
			t.Fatalf("%+v", v)
		}
	}
	var g feed
	g.device()
	for range settleIn {
		g.device(func(d *Device) { *d = Device{UUID: "GPU-0", Lost: "GPU is lost"} })
	}
	if v := g.device(func(d *Device) { *d = Device{UUID: "GPU-0", Lost: "GPU is lost"} }); v.State != Drain || !strings.Contains(v.Reason, "GPU is lost") || v.Device.PCI == "" {
		t.Errorf("%+v", v)
	}
}

// TestProperties: whatever is read, a verdict that stays stays, what is not ok has a reason
// and a cause, a device never vanishes, and equal readings give equal verdicts.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a, b feed
		sticky := false
		for range rapid.IntRange(1, 80).Draw(t, "readings") {
			r := Reading{}
			if rapid.IntRange(0, 9).Draw(t, "listed") > 0 {
				r.Devices = []Device{gpu(func(d *Device) {
					d.Temperature = rapid.IntRange(20, 110).Draw(t, "temperature")
					d.ECCVolatile = uint64(rapid.IntRange(0, 1).Draw(t, "ecc"))
					d.Pending = rapid.Bool().Draw(t, "pending")
				})}
			}
			if rapid.IntRange(0, 9).Draw(t, "xid?") == 0 {
				r.Xids = []Xid{{PCI: "0000:3b:00", Code: rapid.IntRange(1, 180).Filter(func(n int) bool { return n != 154 }).Draw(t, "xid")}}
			}
			v, _ := a.read(r)
			w, _ := b.read(r)
			if v.State != w.State || v.Reason != w.Reason {
				t.Fatalf("%+v and %+v of equal readings", v, w)
			}
			if v.Device.UUID == "" {
				if len(r.Devices) > 0 {
					t.Fatal("no verdict")
				}
				continue
			}
			if (v.State != OK) != (v.Reason != "" && v.Cause != "") {
				t.Fatalf("%+v", v)
			}
			if sticky && v.State != Drain { // RemapFailed and Xid 154, which are taken back, are not drawn
				t.Fatalf("it drained for good, and now %+v", v)
			}
			sticky = sticky || v.Sticky
		}
	})
}

func TestMany(t *testing.T) {
	var p Policy
	r := Reading{}
	for i := range 3 * MaxDevices {
		r.Devices = append(r.Devices, Device{Index: i, PCI: "0000:3b:00.0", UUID: "GPU-" + strings.Repeat("x", i+1)})
	}
	for range 10 * MaxXids {
		r.Xids = append(r.Xids, Xid{"0000:3b:00", 48, ""})
	}
	verdicts, reports := p.Judge(1, r)
	if len(verdicts) != MaxDevices || len(reports) != MaxXids {
		t.Errorf("%d verdicts, %d reports", len(verdicts), len(reports))
	}
}
