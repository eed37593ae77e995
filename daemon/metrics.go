package daemon

import (
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/topology"
)

// metrics are those of cli.md that exist so far. What the snapshot holds is read
// from it at each scrape; the rest is counted where it happens.
type metrics struct {
	registry *prometheus.Registry
	tokens   *prometheus.CounterVec
	recovery *prometheus.HistogramVec
	step     *prometheus.HistogramVec
	shed     *prometheus.CounterVec
	ttft     prometheus.Histogram
	garbage  prometheus.Counter

	generated prometheus.Counter // of tokens

	replicated *prometheus.CounterVec
	rejected   *prometheus.CounterVec

	weights         *prometheus.CounterVec
	weightsRejected prometheus.Counter
}

const (
	rejectedName = "kevlard_kv_rejected_total"
	rejectedHelp = "KV from peers, and stored KV, that was not used."
)

func newMetrics(d *Daemon) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kevlard_tokens_total", Help: "Tokens of sessions owned here: prompt (taken) and generated.",
		}, []string{"kind"}),
		recovery: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kevlard_recovery_seconds", Help: "Failovers of sessions owned here by phase: detect, reroute, restore.",
			Buckets: prometheus.ExponentialBuckets(0.002, 2, 14),
		}, []string{"phase"}),
		step: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kevlard_step_seconds", Help: "Time of one batch in the engine of a stage here.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}, []string{"stage"}),
		shed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kevlard_shed_total", Help: "Sessions refused or given up for want of room or a route.",
		}, []string{"reason"}),
		ttft: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kevlard_ttft_seconds", Help: "From submission to the first token, of sessions owned here.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 14),
		}),
		garbage: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kevlard_bad_messages_total", Help: "Messages and frames from peers that this build could not read.",
		}),
		replicated: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kevlard_replicated_bytes_total", Help: "KV sent to standbys.",
		}, []string{"transport"}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: rejectedName, Help: rejectedHelp,
		}, []string{"reason"}),
	}
	m.weights = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kevlard_weights_bytes_total", Help: "Weights sent to other nodes, and fetched from them.",
	}, []string{"direction"})
	m.weightsRejected = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kevlard_weights_rejected_total", Help: "Chunks of weights, and descriptions of models, from peers that were not what they should be.",
	})
	// What may be rare is there from the start, so that its rate is 0 and not unknown.
	m.tokens.WithLabelValues("prompt")
	m.generated = m.tokens.WithLabelValues("generated")
	for _, phase := range []string{"detect", "reroute", "restore"} {
		m.recovery.WithLabelValues(phase)
	}
	for _, reason := range []string{"capacity", "draining", "key_limit", "no_route", "overloaded"} {
		m.shed.WithLabelValues(reason)
	}
	m.replicated.WithLabelValues(d.cfg.transport())
	m.registry.MustRegister(m.tokens, m.recovery, m.step, m.shed, m.ttft, m.garbage, m.replicated, m.rejected, m.weights, m.weightsRejected, gauges{d},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) observeStep(k kevlard.StageKey, took time.Duration) {
	m.step.WithLabelValues(fmt.Sprintf("%d-%d", k.Layers.Lo, k.Layers.Hi)).Observe(took.Seconds())
}

// observeRecovery takes a failover that ended.
func (m *metrics) observeRecovery(f kevlard.Failover) {
	for phase, took := range map[string]time.Duration{"detect": f.Detect, "reroute": f.Reroute, "restore": f.Restore} {
		m.recovery.WithLabelValues(phase).Observe(took.Seconds())
	}
}

// Shed counts a request that the API turned away before it became a session.
func (d *Daemon) Shed(reason string) { d.shed("", reason, "") }

// shed counts a session or request that was turned away, and tells it once a minute for
// each reason: under load they are many, and the counter has their number.
func (d *Daemon) shed(session kevlard.SessionID, reason, detail string) {
	d.metrics.shed.WithLabelValues(reason).Inc()
	if d.seldom.allow("shed " + reason) {
		d.report(node.Report{Type: "shed", Session: session, Cause: reason, Detail: detail})
	}
}

// Gatherer returns the node's metrics registry, for /metrics.
func (d *Daemon) Gatherer() prometheus.Gatherer { return d.metrics.registry }

// gauges reads the snapshot at each scrape.
type gauges struct{ d *Daemon }

// Describe sends nothing: which labels there are depends on the ring.
func (gauges) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (g gauges) Collect(out chan<- prometheus.Metric) {
	emit := func(kind prometheus.ValueType, name, help string, v float64, labels ...string) {
		var names, values []string
		for i := 0; i < len(labels); i += 2 {
			names, values = append(names, labels[i]), append(values, labels[i+1])
		}
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, v, values...)
	}
	s := g.d.snapshot()
	members := map[string]int{"alive": 0, "suspect": 0, "dead": 0, "left": 0, "draining": 0, "isolated": 0}
	for _, m := range g.d.Members().Nodes {
		members[m.State]++
	}
	for state, n := range members {
		emit(prometheus.GaugeValue, "kevlard_members", "Members of the ring as this node sees them.", float64(n), "state", state)
	}
	sessions := map[string]int{"queued": 0, "prefill": 0, "decode": 0, "recovering": 0, "paused": len(s.node.Paused)}
	for _, i := range s.node.Sessions {
		sessions[i.State]++
	}
	for state, n := range sessions {
		emit(prometheus.GaugeValue, "kevlard_sessions", "Sessions owned here.", float64(n), "state", state)
	}
	c := s.node.Counters
	for why, n := range fromStart(c.Failovers, "drain", "engine-exit", "engine-stall", "keepalive", "progress", "refused", "release", "reset", "silence") {
		emit(prometheus.CounterValue, "kevlard_failovers_total", "Re-routes of running sessions owned here.", float64(n), "cause", why)
	}
	for why, n := range fromStart(c.Reforms, string(topology.Join), string(topology.Death), string(topology.Drained), string(topology.Resplit), string(topology.Rebalance), string(topology.Unserved), "load-failed") {
		emit(prometheus.CounterValue, "kevlard_reforms_total", "Stages adopted, given up and given back by this node.", float64(n), "reason", why)
	}
	emit(prometheus.CounterValue, "kevlard_takeovers_total", "Sessions taken over by this node from owners that were gone.", float64(c.TakeOvers))
	emit(prometheus.CounterValue, "kevlard_prefix_reused_tokens_total", "Tokens of prompts of sessions owned here whose KV was found instead of computed.", float64(c.PrefixReused))
	emit(prometheus.CounterValue, "kevlard_fenced_items_total", "Stale items, answers and results dropped.", float64(c.Fenced))
	for result, n := range map[string]uint64{"agree": s.node.Audits.Agreed, "differ": s.node.Audits.Differed, "silent": s.node.Audits.Silent} {
		emit(prometheus.CounterValue, "kevlard_audits_total", "Audits of what others compute with the layers that are also here.", float64(n), "result", result)
	}
	rows := 0
	compared := s.view.Compare()
	for _, st := range s.node.Stages {
		rows += st.QueuedRows
		ready := 0.0
		if st.State == topology.Ready {
			ready = 1
		}
		emit(prometheus.GaugeValue, "kevlard_stage_ready", "1 when the stage here takes work.", ready,
			"model", st.Key.Model.String(), "lo", strconv.Itoa(st.Key.Layers.Lo), "hi", strconv.Itoa(st.Key.Layers.Hi))
		emit(prometheus.CounterValue, "kevlard_stage_busy_seconds_total", "Time that the engines of the stage here have computed.", st.Busy.Seconds(),
			"model", st.Key.Model.String(), "lo", strconv.Itoa(st.Key.Layers.Lo), "hi", strconv.Itoa(st.Key.Layers.Hi))
		emit(prometheus.GaugeValue, "kevlard_stage_slowness", "The time that the stage here takes for a row, beside other stages of its model: 2 is twice as long; 0 is not known.", slowness(compared, g.d.cfg.Name, st.Key),
			"model", st.Key.Model.String(), "lo", strconv.Itoa(st.Key.Layers.Lo), "hi", strconv.Itoa(st.Key.Layers.Hi))
		emit(prometheus.GaugeValue, "kevlard_stage_load_progress", "How much of the weights of the stage here is loaded, 0 to 1.", float64(st.Progress)/1000,
			"model", st.Key.Model.String(), "lo", strconv.Itoa(st.Key.Layers.Lo), "hi", strconv.Itoa(st.Key.Layers.Hi))
	}
	g.copies(s, emit)
	g.deviceMetrics(emit)
	emit(prometheus.GaugeValue, "kevlard_queue_depth", "Rows that wait for a batch at the stages here.", float64(rows))
}

// fromStart returns the counts and 0 for those of usual that have not come yet: what a
// counter holds when it first appears is no increase to Prometheus, so the first failover
// would be missed.
func fromStart(counts map[string]uint64, usual ...string) map[string]uint64 {
	out := make(map[string]uint64, len(counts)+len(usual))
	for _, why := range usual {
		out[why] = 0
	}
	maps.Copy(out, counts)
	return out
}

// copies tells of KV: what is kept, what was not used, how far standbys are behind.
func (g gauges) copies(s *snapshot, emit func(kind prometheus.ValueType, name, help string, v float64, labels ...string)) {
	kv := s.node.KV
	bytes := func(v int64, tier, kind string) {
		emit(prometheus.GaugeValue, "kevlard_kv_bytes", "KV held here: in engines, in block memory, and in buffers on its way.", float64(v), "tier", tier, "kind", kind)
	}
	bytes(g.d.engines.cellsInUse(s), "engine", "session")
	bytes(kv.Bytes-kv.CachedBytes, "ram", "standby")
	bytes(max(0, g.d.copies.store.Bytes()-kv.Bytes), "ram", "spare")
	bytes(kv.CachedBytes, "ram", "prefix")
	bytes(g.d.copies.keeper.buffers.Used()+g.d.copies.sender.buffers.Used(), "ram", "buffer")
	for reason, n := range map[string]uint64{"capacity": kv.Refused, "stale": kv.Stale, "gap": kv.Gaps, "diverged": kv.Diverged} {
		emit(prometheus.CounterValue, rejectedName, rejectedHelp, float64(n), "reason", reason)
	}
	for kind, n := range map[string]uint64{"exported": kv.Exported, "stored": kv.Positions, "kept": kv.Kept, "found": kv.Reused, "loaded": kv.Loaded} {
		emit(prometheus.CounterValue, "kevlard_kv_positions_total", "Positions sent to standbys, stored here for others, kept here of what was computed here, found here by an offer, and loaded into engines.", float64(n), "kind", kind)
	}
	lag := 0
	for _, i := range s.node.Sessions {
		for hop, n := range i.Standbys {
			if n != "" && hop < len(i.Replicated) {
				lag = max(lag, i.Tokens-i.Replicated[hop])
			}
		}
	}
	emit(prometheus.GaugeValue, "kevlard_standby_lag_tokens", "The most tokens of a session owned here that one of its standbys lacks.", float64(lag))
}
