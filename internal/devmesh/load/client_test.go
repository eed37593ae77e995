package load

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func serve(t *testing.T, status int, body string) *Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req map[string]any
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil && r.Method == http.MethodPost {
			t.Errorf("request: %v", err)
		}
		if r.Method == http.MethodPost && (req["prompt"] != "Once" || req["stream"] != true || req["max_tokens"] != 3.0) {
			t.Errorf("request %v", req)
		}
		w.Header().Set("X-Kevlard-Session", "s1")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return NewClient(s.URL)
}

const twoPieces = `data: {"choices":[{"text":" upon","token_ids":[5],"finish_reason":null}],"usage":null}

: keep-alive

data: {"choices":[{"text":" a","token_ids":[6,7],"finish_reason":"length"}]}

`

func TestStreamRecordsWhatTheClientSaw(t *testing.T) {
	c := serve(t, 200, twoPieces+"data: {\"choices\":[],\"usage\":{\"completion_tokens\":3}}\n\ndata: [DONE]\n\n")
	var seen []string
	r := c.Stream(context.Background(), Request{Prompt: "Once", MaxTokens: 3}, func(s string, p Piece) { seen = append(seen, s+p.Text) })
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	if r.Text() != " upon a" || r.Finish != "length" || r.Tokens != 3 || !r.Done || r.Session != "s1" || len(r.IDs()) != 3 {
		t.Errorf("got %+v", r)
	}
	if strings.Join(seen, "|") != "s1 upon|s1 a" {
		t.Errorf("pieces %q", seen)
	}
	other := r
	other.Pieces = other.Pieces[:1]
	if !r.Same(r) || r.Same(other) {
		t.Error("Same does not compare tokens")
	}
}

func TestStreamErrors(t *testing.T) {
	for _, c := range []struct {
		name, body, want string
		status           int
		inStream         bool
	}{
		{"within", twoPieces + `data: {"error":{"message":"gone","type":"server_error","code":"no_route"}}` + "\n\n", "no_route", 200, true},
		{"before", `{"error":{"message":"full","type":"rate_limit_error","code":null}}`, "rate_limit_error", 429, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := serve(t, c.status, c.body).Stream(context.Background(), Request{Prompt: "Once", MaxTokens: 3}, nil)
			e, ok := errors.AsType[*APIError](r.Err)
			if !ok || e.Code != c.want || e.Status != c.status || e.InStream != c.inStream {
				t.Fatalf("got %v (%+v)", r.Err, e)
			}
		})
	}
	for name, body := range map[string]string{"cut": twoPieces, "not JSON": "data: {\n\n", "empty": ""} {
		r := serve(t, 200, body).Stream(context.Background(), Request{Prompt: "Once", MaxTokens: 3}, nil)
		if r.Err == nil || r.Done {
			t.Errorf("%s: a broken stream passed as whole: %+v", name, r)
		}
	}
	if r := serve(t, 503, "<html>").Stream(context.Background(), Request{Prompt: "Once", MaxTokens: 3}, nil); r.Err == nil {
		t.Error("an answer without envelope passed")
	}
}

func TestLongestGapCountsFromTheFault(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	r := Result{Pieces: []Piece{{At: at(0)}, {At: at(500)}, {At: at(510)}, {At: at(600)}, {At: at(605)}}}
	for _, c := range []struct{ from, to, want int }{
		{505, 1000, 90},
		{0, 1000, 500},
		{505, 599, 10},
		{700, 1000, 0},
	} {
		if got := r.LongestGap(at(c.from), at(c.to)); got != time.Duration(c.want)*time.Millisecond {
			t.Errorf("from %d to %d: %s, want %d ms", c.from, c.to, got, c.want)
		}
	}
}

func TestQuantileIsNearestRank(t *testing.T) {
	d := []time.Duration{4, 1, 3, 2}
	for _, c := range []struct {
		q    float64
		want time.Duration
	}{{0, 1}, {0.25, 1}, {0.5, 2}, {0.51, 3}, {0.99, 4}, {1, 4}} {
		if got := Quantile(d, c.q); got != c.want {
			t.Errorf("quantile %v is %d, want %d", c.q, got, c.want)
		}
	}
	if Quantile(nil, 0.5) != 0 || Mean(nil) != 0 || Mean(d) != 2 {
		t.Error("empty or mean")
	}
}

func TestMetricSumsLabels(t *testing.T) {
	text := "# HELP kevlard_x y\nkevlard_x{a=\"1\"} 2\nkevlard_x{a=\"2\"} 3.5\nkevlard_x_total 9\nkevlard_y 1\n"
	got, err := sumSamples(strings.NewReader(text), "kevlard_x")
	if err != nil || got != 5.5 {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := sumSamples(strings.NewReader("kevlard_x many\n"), "kevlard_x"); err == nil {
		t.Error("a broken sample passed")
	}
}
