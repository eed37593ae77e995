package bench

import (
	"slices"
	"strings"

	"github.com/kevlard/kevlard/internal/devmesh/load"
	"github.com/kevlard/kevlard/internal/measure"
)

// OverheadCPU is the processor time that copies cost, in seconds for each GB (1e9
// bytes) of KV sent: that of "on" less that of "off".
type OverheadCPU struct {
	CI95 [2]float64 `json:"ci95"` // of cpu_s_per_gb
	// Sender is the hosts that the streams ran through, Receiver the other hosts,
	// Owner the gateways. Only pairs count in which every half kept to one pipeline.
	Sender   RoleCPU `json:"sender"`
	Receiver RoleCPU `json:"receiver"`
	Owner    RoleCPU `json:"owner"`
	Pairs    int     `json:"pairs"` // that count for the three
}

// RoleCPU is the share of one kind of nodes.
type RoleCPU struct {
	SecondsGB float64    `json:"s_per_gb"`
	CI95      [2]float64 `json:"ci95"`
	Daemon    float64    `json:"daemon_s_per_gb"`
	Engine    float64    `json:"engine_s_per_gb"`
}

// weigh compares the halves of all pairs. bytes is the KV sent in all of them.
func weigh(r *OverheadReport, halves [2][]halfResult, bytes float64) {
	var latency []measure.Pair
	for i := range halves[on] {
		latency = append(latency, measure.Pair{On: measure.Mean(latencies(halves[on][i])), Off: measure.Mean(latencies(halves[off][i]))})
	}
	cost := measure.Cost(latency)
	r.LatencyMeanPct, r.LatencyCI95 = cost.Mean, [2]float64{cost.Lo, cost.Hi}
	r.Off, r.On = describe(halves[off]), describe(halves[on])
	r.LatencyP99Pct = measure.Percent(r.On.LatencyMS.P99, r.Off.LatencyMS.P99)
	r.TokenP99Pct = measure.Percent(r.On.TokenMS.P99, r.Off.TokenMS.P99)
	r.ReplicatedBytes = bytes
	positions := 0
	for _, h := range halves[on] {
		for _, s := range h.streams {
			positions += r.PromptTokens + s.Tokens - 1 // the last token is never an input
		}
	}
	r.BytesPerToken = measure.Ratio(bytes, float64(positions))
	weighCPU(r, halves, bytes/1e9)
}

func describe(halves []halfResult) Half {
	var latency, token []float64
	for _, h := range halves {
		latency = append(latency, latencies(h)...)
		for _, s := range h.streams {
			for _, gap := range s.Gaps() {
				token = append(token, load.Millis(gap))
			}
		}
	}
	return Half{LatencyMS: meanP99(latency), TokenMS: meanP99(token)}
}

func latencies(h halfResult) []float64 {
	var out []float64
	for _, s := range h.streams {
		out = append(out, load.Millis(s.Ended.Sub(s.Sent)))
	}
	return out
}

func weighCPU(r *OverheadReport, halves [2][]halfResult, gb float64) {
	var all []measure.Pair
	roles := map[string]*rolePairs{sender: {}, receiver: {}, owner: {}}
	for i := range halves[on] {
		total := func(h halfResult) (sum float64) {
			for _, s := range h.spent {
				sum += s.daemon + s.engine
			}
			return sum
		}
		all = append(all, measure.Pair{On: total(halves[on][i]), Off: total(halves[off][i])})
		a, okA := byRole(halves[on][i], r.Stages)
		b, okB := byRole(halves[off][i], r.Stages)
		if !okA || !okB {
			continue
		}
		r.CPU.Pairs++
		for role, p := range roles {
			p.add(a[role], b[role])
		}
	}
	cost := measure.PerUnit(all, gb)
	r.CPUSecondsGB, r.CPU.CI95 = cost.Mean, [2]float64{cost.Lo, cost.Hi}
	share := gb * measure.Ratio(float64(r.CPU.Pairs), float64(len(all)))
	r.CPU.Sender, r.CPU.Receiver, r.CPU.Owner = roles[sender].weigh(share), roles[receiver].weigh(share), roles[owner].weigh(share)
}

// The roles of nodes in one half.
const (
	sender   = "sender"
	receiver = "receiver"
	owner    = "owner"
)

// byRole sums the processor time of one half by role. It is not ok unless all its
// streams took one route, of so many stages.
func byRole(h halfResult, stages int) (map[string]spent, bool) {
	if len(h.routes) == 0 {
		return nil, false
	}
	route := h.routes[0]
	for _, other := range h.routes {
		if !slices.Equal(other, route) {
			return nil, false
		}
	}
	out := map[string]spent{}
	for name, s := range h.spent {
		role := receiver
		switch {
		case slices.Contains(route, name):
			role = sender
		case strings.HasPrefix(name, "gateway-"):
			role = owner
		}
		out[role] = spent{out[role].daemon + s.daemon, out[role].engine + s.engine}
	}
	return out, len(route) == stages
}

// rolePairs is the processor time of one role, by pair.
type rolePairs struct{ all, daemon, engine []measure.Pair }

func (p *rolePairs) add(on, off spent) {
	p.daemon = append(p.daemon, measure.Pair{On: on.daemon, Off: off.daemon})
	p.engine = append(p.engine, measure.Pair{On: on.engine, Off: off.engine})
	p.all = append(p.all, measure.Pair{On: on.daemon + on.engine, Off: off.daemon + off.engine})
}

func (p *rolePairs) weigh(gb float64) RoleCPU {
	all := measure.PerUnit(p.all, gb)
	return RoleCPU{
		SecondsGB: all.Mean, CI95: [2]float64{all.Lo, all.Hi},
		Daemon: measure.PerUnit(p.daemon, gb).Mean, Engine: measure.PerUnit(p.engine, gb).Mean,
	}
}
