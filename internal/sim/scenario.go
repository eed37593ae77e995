package sim

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/kvstream/index"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/topology"
)

// Kind names one kind of fault.
type Kind int

// The kinds of faults.
const (
	Kill         Kind = iota // a host's daemon and engines die; it may come back
	Freeze                   // SIGSTOP of a daemon
	Reset                    // a connection breaks
	Block                    // one or both directions of a link are dropped
	Isolate                  // a host is cut off from all others
	SlowLink                 // a link's delay grows
	EngineKill               // an engine dies by SIGKILL
	EngineAbort              // an engine dies as if its batch was at fault
	EngineFreeze             // SIGSTOP of an engine
	SlowEngine               // an engine takes a multiple of its time
	FalseDeath               // the ring calls a live node dead for a moment
	Drain                    // a node drains, then takes it back
	BulkReset                // a connection that carries KV breaks
	BulkHole                 // it swallows what is sent
	SlowBulk                 // it is slow
	Corrupt                  // bits of KV flip on the way
	Rot                      // bits of stored KV flip
	kinds

	plainKinds = BulkReset // those before have nothing to do with copies
)

func (k Kind) String() string {
	return [...]string{
		"kill", "freeze", "reset", "block", "isolate", "slow-link", "engine-kill", "engine-abort", "engine-freeze", "slow-engine", "false-death", "drain",
		"bulk-reset", "bulk-hole", "slow-bulk", "corrupt", "rot",
	}[k]
}

// Scenario fixes a run: the mesh, its load and which faults it meets. The seed
// draws everything else.
type Scenario struct {
	Seed     uint64
	Layers   int
	Ranges   []kevlard.Layers // the stages of the model
	Copies   int              // holders of each stage
	Whole    int              // further hosts that hold all layers
	Gateways int              // hosts without stages
	Cells    int              // KV positions of each engine
	Limits   node.Limits

	Sessions   int
	MaxTokens  int // the most of one session
	Poison     int // sessions whose prompt kills engines
	SafeOwners bool

	Horizon time.Duration // submissions and faults fall before it
	Faults  int
	Kinds   []Kind
	// Gentle spares one holder of every stage and the gateways, so that no session
	// they own may fail.
	Gentle bool

	LinkMin, LinkMean    time.Duration
	BatchFixed, BatchRow time.Duration
	Wire                 bool // pass messages through their byte format

	Standbys int           // copies of each session's KV
	BulkByte time.Duration // that a byte of KV takes on its way
	Tight    bool          // some hosts have hardly any room for copies
	Hot      bool          // some keep copies in their engines
	Shared   bool          // many prompts begin alike and share KV

	Planned bool          // hosts take the stages of the plan, as many as there are Ranges
	Start   time.Duration // sessions and faults come after it
	InTurn  time.Duration // one host after another dies, so far apart; 0: faults are drawn

	Roam bool // clients come back on any node when their owner is gone

	// Audit makes hosts audit what others compute, which is all the same here.
	Audit bool
	// Liar is the number of the host that computes with other weights, from 1 on; 0: none does.
	Liar int

	// Crowd is how many sessions come at once, when all engines are ready, whose prompts
	// begin with the same Opening tokens. They come before Sessions.
	Crowd, Opening int
}

// Plain draws a scenario without copies of KV.
func Plain(seed uint64) Scenario {
	rng := rand.New(rand.NewPCG(seed, 0x5ce0))
	s := Scenario{
		Seed: seed, Layers: 2 + rng.IntN(5), Copies: 2 + rng.IntN(2), Whole: rng.IntN(4) / 3, Gateways: 1,
		Cells: 1 << 14, Sessions: 2 + rng.IntN(10), MaxTokens: 1 + rng.IntN(160),
		Horizon: time.Duration(1+rng.IntN(5)) * time.Second, Faults: rng.IntN(14), Gentle: rng.IntN(3) > 0,
		LinkMin: time.Duration(50+rng.IntN(2000)) * time.Microsecond, LinkMean: time.Duration(1+rng.IntN(2000)) * time.Microsecond,
		BatchFixed: time.Duration(1+rng.IntN(4)) * time.Millisecond, BatchRow: time.Duration(20+rng.IntN(400)) * time.Microsecond,
		Wire: rng.IntN(5) == 0, SafeOwners: rng.IntN(3) == 0,
	}
	for lo := 0; lo < s.Layers; {
		hi := min(s.Layers, lo+1+rng.IntN(max(1, s.Layers-1)))
		s.Ranges = append(s.Ranges, kevlard.Layers{Lo: lo, Hi: hi})
		lo = hi
	}
	if rng.IntN(6) == 0 { // a mesh that is too small for its load
		s.Gentle, s.Cells = false, 256+rng.IntN(1500)
		s.Limits.Sessions = 1 + rng.IntN(6)
		s.Limits.Stage.Sessions = 1 + rng.IntN(8)
	}
	if rng.IntN(5) == 0 {
		s.Limits.Stage.BatchRows = 1 + rng.IntN(40)
		s.Limits.Stage.BatchParts = 1 + rng.IntN(4)
	}
	if rng.IntN(6) == 0 {
		s.Poison = 1 + rng.IntN(2)
	}
	if rng.IntN(10) == 0 {
		s.Copies = 1
		s.Gentle = false
	}
	s.SafeOwners = s.SafeOwners && s.Gentle
	for k := range plainKinds {
		if rng.IntN(2) == 0 {
			s.Kinds = append(s.Kinds, k)
		}
	}
	if len(s.Kinds) == 0 {
		s.Faults = 0
	}
	return s
}

// FromSeed draws a scenario: each seed enables its own mix of faults.
func FromSeed(seed uint64) Scenario {
	s := Plain(seed)
	rng := rand.New(rand.NewPCG(seed, 0x5ce1))
	if rng.IntN(10) == 0 {
		return s
	}
	s.Roam = rng.IntN(2) == 0
	s.Standbys = 1
	s.BulkByte = time.Duration(rng.IntN(20_000))
	s.Tight, s.Hot, s.Shared = rng.IntN(5) == 0, rng.IntN(4) == 0, rng.IntN(3) == 0
	for k := plainKinds; k < kinds; k++ {
		if rng.IntN(3) == 0 {
			s.Kinds = append(s.Kinds, k)
			s.Faults += 1 + rng.IntN(3)
		}
	}
	if rng.IntN(4) == 0 { // long answers: failovers meet copies that are worth something
		s.MaxTokens, s.Horizon = 100+rng.IntN(200), s.Horizon+2*time.Second
	}
	return s
}

// Storm draws a scenario of many sessions and many faults that leave old work
// under way: what fences and barriers are there for.
func Storm(seed uint64) Scenario {
	s := FromSeed(seed)
	s.Gentle, s.SafeOwners, s.Poison, s.Limits, s.Wire = false, false, 0, node.Limits{}, false
	s.Copies, s.Cells, s.Sessions, s.MaxTokens, s.Faults = 3, 1<<14, 16, 150, 40
	s.Horizon = 3 * time.Second
	s.Kinds = []Kind{SlowLink, Reset, Freeze, EngineKill, SlowEngine, Block}
	return s
}

// Widows draws a scenario whose owners are lost, and whose clients come back at once
// wherever they can.
func Widows(seed uint64) Scenario {
	s := FromSeed(seed)
	s.Gentle, s.SafeOwners, s.Poison, s.Limits, s.Wire = false, false, 0, node.Limits{}, seed%4 == 0
	s.Copies, s.Cells, s.Sessions, s.MaxTokens, s.Faults = 2+int(seed%2), 1<<14, 10, 150, 10
	s.Horizon, s.Roam, s.Standbys = 3*time.Second, true, 1
	s.Kinds = []Kind{Kill, Freeze, Isolate, Block}
	return s
}

// Crowd draws a scenario of sessions with one system prompt that come at once, to two
// pipelines whose engines take long for it, without faults.
func Crowd(seed uint64) Scenario {
	rng := rand.New(rand.NewPCG(seed, 0xc20d))
	stages := 2 + rng.IntN(3)
	s := Scenario{
		Seed: seed, Layers: stages, Copies: 2, Gateways: 1, Cells: 1 << 16, MaxTokens: 4, Crowd: 10 + rng.IntN(41), Opening: 128 + rng.IntN(512),
		LinkMin: time.Duration(50+rng.IntN(2000)) * time.Microsecond, LinkMean: time.Duration(1+rng.IntN(2000)) * time.Microsecond,
		BatchFixed: time.Duration(1+rng.IntN(20)) * time.Millisecond, BatchRow: time.Duration(50+rng.IntN(3000)) * time.Microsecond,
		Standbys: rng.IntN(2), BulkByte: 10, Horizon: 4 * time.Second,
	}
	for i := range stages {
		s.Ranges = append(s.Ranges, kevlard.Layers{Lo: i, Hi: i + 1})
	}
	return s
}

// Pressure draws a scenario of many copies in little memory, some of it rotten:
// places are given up and used again all the time.
func Pressure(seed uint64) Scenario {
	s := FromSeed(seed)
	s.Gentle, s.SafeOwners, s.Poison, s.Limits, s.Wire = false, false, 0, node.Limits{}, false
	s.Copies, s.Cells, s.Sessions, s.MaxTokens, s.Faults = 3, 1<<14, 16, 150, 30
	s.Horizon = 3 * time.Second
	s.Standbys, s.BulkByte, s.Tight = 1, 100, true
	s.Kinds = []Kind{EngineKill, Kill, Rot, Reset, BulkReset, Corrupt}
	return s
}

// newWorld builds the mesh of a scenario.
func newWorld(s Scenario, o Options) *world {
	w := &world{
		sc: s, plant: o.Plant, trace: o.Trace, rng: rand.New(rand.NewPCG(s.Seed, 0x17)), copyRNG: rand.New(rand.NewPCG(s.Seed, 0xc0b1)),
		goneRNG: rand.New(rand.NewPCG(s.Seed, 0x90e)), ownRNG: rand.New(rand.NewPCG(s.Seed, 0x0e1)),
		byID: map[kevlard.NodeID]*host{}, pairs: map[[2]int]*pair{}, digest: 0xcbf29ce484222325,
		model: topology.Model{ID: sha256.Sum256([]byte("toy")), Name: "toy", Layers: s.Layers, Context: 1 << 15, Vocab: 256},
	}
	w.judge = newJudge(w)
	if s.Wire {
		w.codec = newCodec()
	}
	add := func(safe bool, ranges ...kevlard.Layers) {
		h := &host{w: w, id: kevlard.NodeID(fmt.Sprintf("n%d", len(w.hosts))), index: len(w.hosts), cells: s.Cells, safe: safe && s.Gentle && (!s.Planned || len(ranges) == 0), kv: w.kvConfig()}
		h.auto = s.Planned && len(ranges) > 0
		for _, r := range ranges {
			if h.auto {
				continue
			}
			h.stages = append(h.stages, node.Assigned{Model: w.model, Layers: r, Width: w.toy().Width})
		}
		w.hosts = append(w.hosts, h)
		w.byID[h.id] = h
		w.names = append(w.names, h.id)
	}
	spared := w.rng.IntN(s.Copies)
	for c := range s.Copies {
		for _, r := range s.Ranges {
			add(c == spared, r)
		}
	}
	for range s.Whole {
		add(false, kevlard.Layers{Lo: 0, Hi: s.Layers})
	}
	for range s.Gateways {
		add(true)
	}
	slices.Sort(w.names)
	w.models = []topology.Model{w.model}
	for i, a := range w.hosts {
		for j := i + 1; j < len(w.hosts); j++ {
			p := &pair{ends: [2]*host{a, w.hosts[j]}}
			for d := range p.sides {
				p.lanes[d] = newLane(p.ends[d], p.ends[1-d])
				p.sides[d].minimum, p.sides[d].mean = s.LinkMin, s.LinkMean
			}
			w.pairs[[2]int{i, j}] = p
		}
	}
	return w
}

// kvConfig draws what one host keeps for others.
func (w *world) kvConfig() index.Config {
	c := index.Config{BlockTokens: []int{4, 8, 32}[w.copyRNG.IntN(3)], Bytes: 8 << 20, Copies: 64, Hot: w.sc.Hot && w.copyRNG.IntN(2) == 0}
	if w.sc.Tight && w.copyRNG.IntN(2) == 0 {
		c.Bytes, c.Copies = int64(max(1, w.copyRNG.IntN(400*8*w.sc.Layers))), 1+w.copyRNG.IntN(8) // 0 is the default
	}
	return c
}
