package weights

import (
	"slices"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/model"
)

// Progress is how far a fetch is.
type Progress struct {
	Model  kevlard.Digest
	Name   string // "" until the header is there
	Layers kevlard.Layers
	// Units are those of the layers, in order; empty until the header is there.
	Units []UnitProgress
	// Done and Total are bytes of Units.
	Done, Total int64
	// Fetched is what came over the network in this fetch, also what was not kept.
	Fetched int64
	// Holders are the nodes that something came from, or that were dropped, by name.
	Holders []HolderProgress
	// Waits is what the fetch waits for that shows no progress and will end; "" while it
	// moves, or should.
	Waits string
	// Ended says that the fetch has ended; Err is why it failed.
	Ended bool
	Err   error
}

// UnitProgress is how far one unit is.
type UnitProgress struct {
	Name     string
	Bytes    int64
	Done     int64 // bytes that are here
	Verified bool  // its digest is right, and it is kept
}

// HolderProgress is what came from one node.
type HolderProgress struct {
	Node    kevlard.NodeID
	Bytes   int64  // that were kept
	Wrong   int    // chunks that did not match their sums
	Dropped string // why it is not asked any more
}

// meter keeps the progress of a fetch, and tells it not too often.
type meter struct {
	tell func(Progress)

	mu   sync.Mutex
	p    Progress
	told time.Time
}

func newMeter(id kevlard.Digest, l kevlard.Layers, tell func(Progress)) *meter {
	return &meter{tell: tell, p: Progress{Model: id, Layers: l}}
}

func (m *meter) get() Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.p
	p.Units, p.Holders = slices.Clone(p.Units), slices.Clone(p.Holders)
	return p
}

// change changes the progress and tells it if it is due, or if it is said to be.
func (m *meter) change(due bool, f func(*Progress)) {
	m.mu.Lock()
	f(&m.p)
	m.p.Done = 0
	for _, u := range m.p.Units {
		m.p.Done += u.Done
	}
	now := time.Now()
	due = due || now.Sub(m.told) >= progressEvery
	if due {
		m.told = now
	}
	m.mu.Unlock()
	if due && m.tell != nil {
		m.tell(m.get())
	}
}

// units names the units of the fetch; those that are not absent are there.
func (m *meter) units(of *model.Manifest, l kevlard.Layers) {
	m.change(true, func(p *Progress) {
		p.Name = of.Name
		for _, u := range of.StageUnits(l) {
			up := UnitProgress{Name: u.Name, Bytes: u.Bytes}
			if !slices.Contains(of.Absent, u.Name) {
				up.Done, up.Verified = u.Bytes, true
			}
			p.Units = append(p.Units, up)
			p.Total += u.Bytes
		}
	})
}

// unit says how much of a unit is there.
func (m *meter) unit(name string, done int64, verified bool) {
	m.change(verified, func(p *Progress) {
		for i := range p.Units {
			if u := &p.Units[i]; u.Name == name {
				u.Done, u.Verified = done, verified
			}
		}
	})
}

func (p *Progress) holder(n kevlard.NodeID) *HolderProgress {
	i, ok := slices.BinarySearchFunc(p.Holders, n, func(h HolderProgress, n kevlard.NodeID) int {
		return slices.Compare([]byte(h.Node), []byte(n))
	})
	if !ok {
		p.Holders = slices.Insert(p.Holders, i, HolderProgress{Node: n})
	}
	return &p.Holders[i]
}

// came says that so many bytes came from a node, and whether they were right.
func (m *meter) came(n kevlard.NodeID, bytes int, right bool) {
	m.change(false, func(p *Progress) {
		p.Fetched += int64(bytes)
		if h := p.holder(n); right {
			h.Bytes += int64(bytes)
		} else {
			h.Wrong++
		}
	})
}

func (m *meter) dropped(n kevlard.NodeID, why string) {
	m.change(true, func(p *Progress) { p.holder(n).Dropped = why })
}

// waits says what the fetch waits for.
func (m *meter) waits(what string) {
	if m.get().Waits != what {
		m.change(true, func(p *Progress) { p.Waits = what })
	}
}

func (m *meter) finish(err error) {
	m.change(true, func(p *Progress) { p.Ended, p.Err, p.Waits = true, err, "" })
}
