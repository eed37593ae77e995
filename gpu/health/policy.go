package health

import (
	"fmt"
	"slices"

	"github.com/kevlard/kevlard"
)

// State is what to do with a device.
type State string

// The states, from good to bad.
const (
	OK    State = "ok"
	Avoid State = "avoid"
	Drain State = "drain"
)

func (s State) rank() int { return slices.Index([]State{OK, Avoid, Drain}, s) }

// worse reports whether s is worse than o.
func (s State) worse(o State) bool { return s.rank() > o.rank() }

// Verdict is what to do with one device, and why.
type Verdict struct {
	Device Device
	State  State
	Cause  string // one word, for metrics and events: xid, ecc, lost, temperature, throttle; "" if ok
	Reason string // for people; "" if ok
	Sticky bool   // it stays until the daemon is started again
}

// Report is an Xid as it was judged.
type Report struct {
	Xid
	Device string // ID of the device, "" if none of the reading has that address
	State  State  // what it asks for by itself
	Text   string // for people
}

// Policy judges one host's GPUs over time. The zero value is ready. Not safe for
// concurrent use.
type Policy struct {
	devices map[string]*track // by Device.ID, at most MaxDevices
}

// track is what is remembered of a device.
type track struct {
	ecc      uint64 // volatile errors of the last reading
	errors   uint64 // of those, since the first reading: what was there before is known
	signs    map[string]*sign
	xids     map[int]xid // the last of each code that asks for something
	last     Device      // the last reading that was one
	gone     bool        // not in the last reading at all
	lost     string      // why it was given up
	seenOnce bool
}

// sign is something that can pass by itself.
type sign struct {
	run   int             // readings in a row that show it
	until kevlard.Instant // it counts until then
	on    bool
}

type xid struct {
	at kevlard.Instant
	m  meaning
}

// complaint is one thing that speaks against a device.
type complaint struct {
	state  State
	cause  string
	reason string
	sticky bool
}

// Judge takes a reading and returns the verdicts, in the order of the devices that were
// ever seen, and the Xids of the reading.
func (p *Policy) Judge(now kevlard.Instant, r Reading) ([]Verdict, []Report) {
	if p.devices == nil {
		p.devices = map[string]*track{}
	}
	for _, line := range r.Kernel {
		if x, ok := ParseXid(line); ok {
			r.Xids = append(r.Xids, x)
		}
	}
	for _, t := range p.devices {
		t.gone = true
	}
	for _, d := range r.Devices {
		t := p.devices[d.ID()]
		if t == nil {
			if len(p.devices) == MaxDevices || d.ID() == "" {
				continue
			}
			t = &track{signs: map[string]*sign{}, xids: map[int]xid{}}
			p.devices[d.ID()] = t
		}
		t.take(d)
	}
	reports := p.xids(now, r.Xids)
	var out []Verdict
	for _, t := range p.devices {
		out = append(out, t.judge(now))
	}
	slices.SortFunc(out, func(a, b Verdict) int {
		if c := a.Device.Index - b.Device.Index; c != 0 {
			return c
		}
		if a.Device.ID() < b.Device.ID() {
			return -1
		}
		return 1
	})
	return out, reports
}

// take notes a reading.
func (t *track) take(d Device) {
	t.gone = false
	if d.Lost != "" && t.seenOnce { // nothing but that could be read
		lost := d.Lost
		d = t.last
		d.Lost = lost
	}
	if t.seenOnce && d.ECCVolatile > t.ecc {
		t.errors += d.ECCVolatile - t.ecc
	}
	t.ecc = d.ECCVolatile // less than before, where the driver was loaded again
	t.seenOnce = t.seenOnce || d.Lost == ""
	t.last = d
}

// xids notes what was reported.
func (p *Policy) xids(now kevlard.Instant, all []Xid) []Report {
	var out []Report
	for _, x := range all[:min(len(all), MaxXids)] {
		m := meaningOf(x)
		r := Report{Xid: x, State: m.state, Text: fmt.Sprintf("Xid %d: %s", x.Code, m.what)}
		for id, t := range p.devices {
			if !SamePCI(t.last.PCI, x.PCI) {
				continue
			}
			r.Device = id
			if m.state != OK {
				t.xids[x.Code] = xid{now, m}
			} else if x.Code == 154 {
				delete(t.xids, 154)
			}
		}
		if x.Text != "" {
			r.Text += " (" + x.Text + ")"
		}
		out = append(out, r)
	}
	return out
}

// judge weighs all that speaks against a device; the worst counts.
func (t *track) judge(now kevlard.Instant) Verdict {
	v := Verdict{Device: t.last, State: OK}
	for _, c := range t.complaints(now) {
		if c.state.worse(v.State) {
			v.State, v.Cause, v.Reason, v.Sticky = c.state, c.cause, c.reason, c.sticky
		}
	}
	return v
}

func (t *track) complaints(now kevlard.Instant) []complaint {
	d := t.last
	var out []complaint
	codes := make([]int, 0, len(t.xids))
	for code := range t.xids {
		codes = append(codes, code)
	}
	slices.Sort(codes)
	for _, code := range codes {
		x := t.xids[code]
		if x.m.state == Avoid && now >= x.at.Add(xidFades) {
			delete(t.xids, code)
			continue
		}
		out = append(out, complaint{x.m.state, "xid", fmt.Sprintf("the driver reported Xid %d: %s", code, x.m.what), x.m.state == Drain})
	}
	why := d.Lost
	if t.gone {
		why = "the driver does not list it any more"
	}
	if t.sign(now, "lost", why != "", why != "") && t.lost == "" {
		t.lost = why
	}
	if t.lost != "" { // one that comes back was reset by somebody, who can say so
		out = append(out, complaint{Drain, "lost", "it could not be read: " + t.lost, true})
	}
	if t.errors > 0 {
		out = append(out, complaint{Drain, "ecc", fmt.Sprintf("%d uncorrectable memory errors since the daemon was started", t.errors), true})
	}
	if d.RemapFailed {
		out = append(out, complaint{Drain, "ecc", "a memory row could not be taken out of use: the GPU should be replaced", true})
	}
	if d.Pending {
		out = append(out, complaint{Avoid, "ecc", "memory rows or pages wait for a reset of the GPU to be taken out of use", false})
	}
	return append(out, t.heat(now)...)
}

// heat looks at temperatures and clocks.
func (t *track) heat(now kevlard.Instant) []complaint {
	d := t.last
	var out []complaint
	hot := d.Slowdown > 0 && d.Temperature >= d.Slowdown-heatMargin
	still := d.Slowdown > 0 && d.Temperature > d.Slowdown-coolMargin
	over := d.Slowdown > 0 && d.Temperature >= d.Slowdown && (d.Shutdown == 0 || d.Shutdown <= d.Slowdown || d.Temperature >= (d.Slowdown+d.Shutdown)/2)
	if t.sign(now, "over", over, still) {
		out = append(out, complaint{Drain, "temperature", fmt.Sprintf("%d degrees: it slows itself down at %d and turns itself off at %d", d.Temperature, d.Slowdown, d.Shutdown), false})
	}
	if t.sign(now, "hot", hot, still) {
		out = append(out, complaint{Avoid, "temperature", fmt.Sprintf("%d degrees: it slows itself down at %d", d.Temperature, d.Slowdown), false})
	}
	slowed := slices.ContainsFunc(d.Throttle, func(s string) bool { return s == ThrottleThermal || s == ThrottleBrake || s == ThrottleHW })
	if t.sign(now, "throttle", slowed, slowed) {
		out = append(out, complaint{Avoid, "throttle", fmt.Sprintf("its clocks are held down (%v)", d.Throttle), false})
	}
	return out
}

// sign applies hysteresis: shows in settleIn readings in a row turn it on, and it goes
// off when it did not even linger for settleOut.
func (t *track) sign(now kevlard.Instant, name string, shows, lingers bool) bool {
	s := t.signs[name]
	if s == nil {
		s = &sign{}
		t.signs[name] = s
	}
	if shows {
		s.run++
	} else {
		s.run = 0
	}
	switch {
	case s.run >= settleIn, s.on && lingers:
		s.on, s.until = true, now.Add(settleOut)
	case now >= s.until:
		s.on = false
	}
	return s.on
}
