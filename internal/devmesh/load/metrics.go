package load

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// maxMetrics bounds one answer of /metrics.
const maxMetrics = 4 << 20

// Metric returns the sum of all samples of one metric of the node whose API is at
// base, over all labels; 0 when the metric has no sample yet.
func (c *Client) Metric(ctx context.Context, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/metrics", nil)
	if err != nil {
		return 0, fmt.Errorf("make request: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, fmt.Errorf("scrape metrics: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("scrape metrics: HTTP %d", resp.StatusCode)
	}
	return sumSamples(io.LimitReader(resp.Body, maxMetrics), name)
}

// sumSamples adds the samples of one metric in Prometheus' text format.
func sumSamples(r io.Reader, name string) (float64, error) {
	var sum float64
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		if rest[0] == '{' {
			_, rest, _ = strings.Cut(rest, "}")
		}
		f := strings.Fields(rest)
		if len(f) == 0 {
			return 0, fmt.Errorf("metric %s: no value in %q", name, lines.Text())
		}
		v, err := strconv.ParseFloat(f[0], 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", name, err)
		}
		sum += v
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("read metrics: %w", err)
	}
	return sum, nil
}
