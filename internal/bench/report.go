package bench

// FailoverReport is the JSON of bench failover. Times are milliseconds.
type FailoverReport struct {
	Nodes         int        `json:"nodes"`
	Stages        int        `json:"stages"`
	RPS           float64    `json:"rps"`
	Requests      int        `json:"requests"`   // to kevlard, in both parts
	Faults        int        `json:"faults"`     // of kevlard, in both parts
	Recoveries    int        `json:"recoveries"` // streams that ran through a victim and went on
	Unrecorded    int        `json:"unrecorded"` // streams through a victim without a recovery in the event log
	RestartS      float64    `json:"failstop_restart_s"`
	Fault         Fault      `json:"fault"`
	Standbys      int        `json:"standbys"`
	RecoveryMS    RecoveryMS `json:"recovery_ms"`
	ByContext     []Group    `json:"by_context"`
	Kevlard       Outcome    `json:"kevlard"`
	Failstop      *Outcome   `json:"failstop,omitempty"` // nil without the comparison
	Ratio         *Ratios    `json:"ratio,omitempty"`
	Moved         int        `json:"moved"`          // of the recoveries: streams that were re-routed; fewer only with a slow host
	BusyPct       Busy       `json:"busy_pct"`       // of all processors, by part
	CompareFaults int        `json:"compare_faults"` // in the part that both systems ran
	Each          []Recovery `json:"each"`
}

// RecoveryMS is the pauses that clients saw, and what they were made of.
type RecoveryMS struct {
	P50        float64 `json:"p50"`
	P99        float64 `json:"p99"`
	Max        float64 `json:"max"`
	DetectP50  float64 `json:"detect_p50"`
	ReroutP50  float64 `json:"reroute_p50"`
	RestoreP50 float64 `json:"restore_p50"`
	DetectP99  float64 `json:"detect_p99"`
	ReroutP99  float64 `json:"reroute_p99"`
	RestoreP99 float64 `json:"restore_p99"`
}

// Group is the recoveries of streams with contexts of one range of lengths.
type Group struct {
	Above      int     `json:"context_above"`
	UpTo       int     `json:"context_up_to"`
	Recoveries int     `json:"recoveries"`
	P50        float64 `json:"p50"`
	P99        float64 `json:"p99"`
	RestoreP50 float64 `json:"restore_p50"`
}

// Outcome is what the clients of one system saw. Times are of the part that both
// systems ran where there is one; errors and mismatches are of all parts.
type Outcome struct {
	Requests   int     `json:"requests"`
	Errors     int     `json:"errors"`
	Mismatches int     `json:"token_mismatches"`
	Restarts   int     `json:"restarts"`       // answers begun anew
	TTFT       MeanP99 `json:"ttft_ms"`        // to the first text shown, also of an answer that later began anew
	TTFTAnswer MeanP99 `json:"ttft_answer_ms"` // to the first text of the answer that went through
	Latency    MeanP99 `json:"latency_ms"`
}

// MeanP99 describes a distribution.
type MeanP99 struct {
	Mean float64 `json:"mean"`
	P99  float64 `json:"p99"`
}

// Ratios is kevlard to fail-stop: below 1 the clients of kevlard waited less.
type Ratios struct {
	TTFTMean    float64 `json:"ttft_mean"`
	TTFTP99     float64 `json:"ttft_p99"`
	LatencyMean float64 `json:"latency_mean"`
	LatencyP99  float64 `json:"latency_p99"`
}

// Busy is how busy the machine was, in percent of all processors.
type Busy struct {
	Recoveries float64 `json:"recoveries"`
	Kevlard    float64 `json:"kevlard"`
	Failstop   float64 `json:"failstop"`
}

// Recovery is one stream that ran through a victim.
type Recovery struct {
	Victim    string  `json:"victim"`
	Session   string  `json:"session"`
	Cause     string  `json:"cause"` // "" for a stream that stayed on a slow host
	AtToken   int     `json:"at_token"`
	Context   int     `json:"context"` // tokens known at the fault
	GapMS     float64 `json:"gap_ms"`
	DetectMS  float64 `json:"detect_ms"`
	RerouteMS float64 `json:"reroute_ms"`
	RestoreMS float64 `json:"restore_ms"`
	// Refused says which nodes refused the session on its way, and why.
	Refused []string `json:"refused,omitempty"`
}
