package node

import "github.com/kevlard/kevlard"

// A node is told by its shell how its devices are. While one should be avoided, routes go
// elsewhere as long as there is an elsewhere, and what runs here goes on. When one should
// be drained, the node drains, until the shell says otherwise or somebody overrules it.

// Health says how the devices are that this node computes on, in all: the worst counts.
type Health struct {
	Avoid bool
	Drain bool
	// Key tells complaints apart: an administrator who undoes the drain for this one overrules
	// it, until there is another or all was well. Reason is for people. Both are empty if
	// all is well.
	Key, Reason string
}

func (Health) event() {}

// ailing is what a node knows of its own health.
type ailing struct {
	Health
	drains    bool   // it began the drain that is under way
	overruled string // Key of what was overruled
}

// avoided reports whether others should keep work away.
func (a *ailing) avoided() bool {
	return (a.Avoid || a.Drain) && a.Key != a.overruled
}

// why is the reason for that, "" if there is none.
func (a *ailing) why() string {
	if a.avoided() || a.drains {
		return a.Reason
	}
	return ""
}

func (m *Machine) health(now kevlard.Instant, ev Health, out []Effect) []Effect {
	a := &m.ailing
	a.Health = ev
	if ev.Key == "" {
		a.overruled = ""
	}
	switch {
	case ev.Drain && ev.Key != a.overruled && !m.drains.on:
		a.drains = true
		return m.drain(now, false, append(out, Report{Type: "drain", Cause: "gpu", Detail: ev.Reason}))
	case !ev.Drain && a.drains:
		a.drains = false
		return m.drain(now, true, append(out, Report{Type: "drain-undo", Cause: "gpu", Detail: ev.Reason}))
	}
	return append(out, m.publish())
}

// ordered is a drain, or its undo, that somebody asked for. An undo ends what was ordered,
// and only if nothing was it overrules the devices: who takes a node back after a job, or
// after other work, says nothing of a device that has failed meanwhile.
func (m *Machine) ordered(now kevlard.Instant, undo bool, out []Effect) []Effect {
	a := &m.ailing
	m.drains.orders++
	theirs := m.drains.on && !a.drains
	a.drains = undo && theirs && a.Drain && a.Key != a.overruled
	switch {
	case a.drains:
		return append(out, Report{Type: "drain", Cause: "gpu", Detail: a.Reason}, m.publish())
	case undo && !theirs && (a.Avoid || a.Drain):
		a.overruled = a.Key
	}
	return m.drain(now, undo, out)
}
