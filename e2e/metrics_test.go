package e2e

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	promodel "github.com/prometheus/common/model"

	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// metric is one that the contract with operators names.
type metric struct {
	kind   string // counter, gauge or histogram; "": comes with a later feature
	labels string // keys, comma separated
}

// contract is the list of metrics in the command line's contract.
func contract() map[string]metric {
	return map[string]metric{
		"kevlard_members":                    {"gauge", "state"},
		"kevlard_sessions":                   {"gauge", "state"},
		"kevlard_failovers_total":            {"counter", "cause"},
		"kevlard_recovery_seconds":           {"histogram", "phase"},
		"kevlard_takeovers_total":            {"counter", ""},
		"kevlard_fenced_items_total":         {"counter", ""},
		"kevlard_tokens_total":               {"counter", "kind"},
		"kevlard_ttft_seconds":               {"histogram", ""},
		"kevlard_step_seconds":               {"histogram", "stage"},
		"kevlard_queue_depth":                {"gauge", ""},
		"kevlard_shed_total":                 {"counter", "reason"},
		"kevlard_stage_ready":                {"gauge", "model,lo,hi"},
		"kevlard_reforms_total":              {"counter", "reason"},
		"kevlard_kv_rejected_total":          {"counter", "reason"},
		"kevlard_kv_bytes":                   {"gauge", "tier,kind"},
		"kevlard_replicated_bytes_total":     {"counter", "transport"},
		"kevlard_standby_lag_tokens":         {"gauge", ""},
		"kevlard_prefix_reused_tokens_total": {"counter", ""},
	}
}

// own lists the metrics that the contract does not name.
func own() []string {
	return []string{
		"kevlard_gpu_health", "kevlard_gpu_memory_size_bytes", "kevlard_gpu_memory_used_bytes", "kevlard_gpu_temperature_celsius", "kevlard_gpu_uncorrected_errors", "kevlard_gpu_xids_total",
		"kevlard_audits_total", "kevlard_bad_messages_total", "kevlard_kv_positions_total", "kevlard_stage_busy_seconds_total", "kevlard_stage_load_progress", "kevlard_stage_slowness", "kevlard_weights_bytes_total",
		"kevlard_weights_rejected_total",
	}
}

// scraped is what one node's /metrics has: by name, and the values by name and labels.
type scraped struct {
	metrics map[string]metric
	values  map[string]float64 // counts, of histograms
}

// scrapeNode reads /metrics with Prometheus' own parser and lint.
func scrapeNode(t *testing.T, n *devmesh.Node) scraped {
	t.Helper()
	resp, err := http.Get(n.APIURL() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Fatalf("%s: %d, %q, %v", n.Name(), resp.StatusCode, resp.Header.Get("Content-Type"), err)
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "kevlard_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	parser := expfmt.NewTextParser(promodel.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	out := scraped{map[string]metric{}, map[string]float64{}}
	for name, f := range families {
		if !strings.HasPrefix(name, "kevlard_") {
			continue
		}
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", name)
		}
		for _, m := range f.GetMetric() {
			var keys, values []string
			for _, l := range m.GetLabel() {
				keys = append(keys, l.GetName())
				values = append(values, l.GetName()+"="+l.GetValue())
			}
			is := metric{strings.ToLower(f.GetType().String()), strings.Join(keys, ",")}
			if before, seen := out.metrics[name]; seen && before != is {
				t.Errorf("%s: %s has samples of different labels, %v and %v", n.Name(), name, before, is)
			}
			out.metrics[name] = is
			out.values[strings.Join(append([]string{name}, values...), " ")] =
				m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

// sorted brings label keys into one order.
func sorted(keys string) string {
	list := strings.Split(keys, ",")
	slices.Sort(list)
	return strings.Join(list, ",")
}

// TestMetrics is the list of metrics against what real nodes show after a failover
// and a refusal: names, kinds and label keys exactly, nothing that the list lacks,
// and values that agree with what clients saw.
func TestMetrics(t *testing.T) {
	m := start(t, fourHosts())
	const streams, tokens = 3, 60
	m.unbroken(t, storyRequests(m, streams, tokens))
	eventually(t, readyWithin, func() error { return m.idle(t.Context()) })
	calm := scrapeNode(t, m.Entry())
	for name, want := range map[string]float64{
		"kevlard_tokens_total kind=generated": streams * tokens, "kevlard_ttft_seconds": streams, "kevlard_members state=alive": 5,
		"kevlard_members state=dead": 0, "kevlard_sessions state=decode": 0, "kevlard_recovery_seconds phase=detect": 0,
		"kevlard_recovery_seconds phase=reroute": 0, "kevlard_recovery_seconds phase=restore": 0,
	} {
		if got, ok := calm.values[name]; !ok || got != want {
			t.Errorf("%s is %v (there: %t), want %v", name, got, ok, want)
		}
	}
	if calm.values["kevlard_tokens_total kind=prompt"] < streams {
		t.Errorf("prompt tokens: %v", calm.values)
	}

	s := m.storm(t.Context(), storyRequests(m, 4, 400))
	s.reach(t, 5)
	victim, sibling := m.lastHolders(t)
	if err := victim.Kill(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	failovers := 0
	for i, r := range s.wait(t) {
		if r.Err != nil {
			t.Errorf("stream %d: %v", i, r.Err)
		}
	}
	for _, e := range m.events(t) {
		if e.Type == "recovered" {
			failovers++
		}
	}
	hosting := scrapeNode(t, sibling)
	if err := sibling.Kill(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	refused := m.client.Stream(t.Context(), storyRequests(m, 1, 5)[0], nil)
	if e, ok := refused.Err.(*load.APIError); !ok || e.Status != http.StatusServiceUnavailable || e.Code != "no_route" {
		t.Fatalf("with nobody to serve the last layers: %v", refused.Err)
	}
	var owner scraped
	eventually(t, readyWithin, func() error {
		owner = scrapeNode(t, m.Entry())
		if n := owner.values["kevlard_members state=dead"]; n != 2 {
			return fmt.Errorf("%v dead members", n)
		}
		return nil
	})

	found := map[string]metric{}
	maps.Copy(found, hosting.metrics)
	for name, is := range owner.metrics {
		if other, ok := found[name]; ok && other != is {
			t.Errorf("%s is %v at one node and %v at another", name, is, other)
		}
		found[name] = is
	}
	known := contract()
	for name, want := range known {
		is, there := found[name]
		switch {
		case want.kind == "" && there:
			t.Errorf("%s exists now: give it its kind in this test", name)
		case want.kind == "":
		case !there:
			t.Errorf("%s is missing", name)
		case is.kind != want.kind || sorted(is.labels) != sorted(want.labels):
			t.Errorf("%s is a %s with labels %q: want a %s with %q", name, is.kind, is.labels, want.kind, want.labels)
		}
	}
	for name, is := range found {
		if _, listed := known[name]; !listed && !slices.Contains(own(), name) {
			t.Errorf("%s (%v) is not in the contract", name, is)
		}
	}

	sum := func(of scraped, name string) (n float64) {
		for k, v := range of.values {
			if k == name || strings.HasPrefix(k, name+" ") {
				n += v
			}
		}
		return n
	}
	if n := sum(owner, "kevlard_failovers_total"); failovers == 0 || n < float64(failovers) {
		t.Errorf("%v failovers counted, %d were reported", n, failovers)
	}
	for _, phase := range []string{"detect", "reroute", "restore"} {
		if n := owner.values["kevlard_recovery_seconds phase="+phase]; n != float64(failovers) {
			t.Errorf("%v times of phase %s, want %d", n, phase, failovers)
		}
	}
	if n := owner.values["kevlard_shed_total reason=no_route"]; n != 1 {
		t.Errorf("shed for no_route: %v, want 1", n)
	}
	layers := fmt.Sprintf("%d-%d", sibling.Layers().Lo, sibling.Layers().Hi)
	if hosting.values["kevlard_step_seconds stage="+layers] < 400 || sum(hosting, "kevlard_stage_ready") != 1 {
		t.Errorf("the host of layers %s shows %v", layers, hosting.values)
	}
}

// lastHolders returns the host of the last layers that some session runs through, and
// the other one.
func (m *mesh) lastHolders(t *testing.T) (used, other *devmesh.Node) {
	t.Helper()
	sessions, err := m.Entry().Sessions(t.Context())
	if err != nil || len(sessions) == 0 {
		t.Fatalf("%d sessions, %v", len(sessions), err)
	}
	route := sessions[0].Route
	used, other = m.Node(2), m.Node(4)
	if route[len(route)-1] == other.Name() {
		used, other = other, used
	}
	if used.Layers() != other.Layers() || route[len(route)-1] != used.Name() {
		t.Fatalf("route %v: %s holds %v, %s %v", route, used.Name(), used.Layers(), other.Name(), other.Layers())
	}
	return used, other
}

// TestMetricsContract compares the list above with the contract's text.
func TestMetricsContract(t *testing.T) {
	text, err := os.ReadFile("../../shared/cli.md")
	if err != nil {
		t.Skipf("needs a file that is not part of the repository: %v", err)
	}
	_, section, _ := strings.Cut(string(text), "## Metrics")
	section, _, _ = strings.Cut(section, "\n## ")
	want := map[string]string{}
	for _, m := range regexp.MustCompile("`(kevlard_[a-z_]+)(?:\\{([a-z,]+)\\})?`").FindAllStringSubmatch(section, -1) {
		want[m[1]] = m[2]
	}
	got := map[string]string{}
	for name, m := range contract() {
		got[name] = m.labels
	}
	if len(want) == 0 || !maps.Equal(got, want) {
		t.Errorf("the test's list is %v\nthe contract's %v", got, want)
	}
}
