package api

import (
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"pgregory.net/rapid"
)

func TestParseQuota(t *testing.T) {
	for text, want := range map[string]struct {
		quota
		err string
	}{
		"":                      {},
		"in_flight=4":           {quota: quota{4, 0}},
		"rate=60 in_flight=1":   {quota: quota{1, 60}},
		"rate=0":                {err: "rate is not a number from 1 to 1000000"},
		"rate=-1":               {err: "rate is not a number from 1 to 1000000"},
		"in_flight=":            {err: "in_flight is not a number from 1 to 1000000"},
		"in_flight=1000001":     {err: "in_flight is not a number from 1 to 1000000"},
		"rate=1 rate=1":         {err: "rate is there twice"},
		"kvl-secret":            {err: "after the hash come only in_flight=N and rate=N"},
		"rate=1 tokens=5":       {err: "after the hash come only in_flight=N and rate=N"},
		"in_flight=4 # comment": {err: "after the hash come only in_flight=N and rate=N"},
	} {
		q, err := parseQuota(strings.Fields(text))
		if q != want.quota || (err == nil) != (want.err == "") || err != nil && err.Error() != want.err {
			t.Errorf("%q: %+v, %v", text, q, err)
		}
	}
}

// TestAllowance compares with counting: in no minute more begin than a full bucket and what
// flows in, never more run at once, and who waits as told is let in.
func TestAllowance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := quota{rapid.IntRange(0, 4).Draw(t, "in flight"), rapid.IntRange(0, 30).Draw(t, "rate")}
		var u allowance
		now := time.Unix(1_000_000, 0)
		var begun []time.Time
		running := 0
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch {
			case running > 0 && rapid.Bool().Draw(t, "end"):
				u.end()
				running--
			default:
				now = now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)
				why, wait := u.begin(now, q, false)
				full := q.inFlight > 0 && running >= q.inFlight
				switch {
				case why == "" && full:
					t.Fatalf("%d run, %d are allowed", running+1, q.inFlight)
				case why == "":
					running++
					begun = append(begun, now)
				case wait <= 0:
					t.Fatalf("refused (%s), wait %v", why, wait)
				case !full:
					again := allowance{inFlight: u.inFlight, tokens: u.tokens, at: u.at}
					if why, _ := again.begin(now.Add(wait+time.Microsecond), q, false); why != "" {
						t.Fatalf("told to wait %v, and then refused: %s", wait, why)
					}
				}
			}
		}
		last := 0
		for _, b := range begun {
			if now.Sub(b) < time.Minute {
				last++
			}
		}
		if q.rate > 0 && last > 2*q.rate { // a full bucket, and what flowed in
			t.Fatalf("%d began within a minute, the rate is %d", last, q.rate)
		}
	})
	var u allowance // one that goes on with a stream is let in, and counts
	for range 2 {
		if why, _ := u.begin(time.Unix(0, 0), quota{inFlight: 1, rate: 1}, true); why != "" {
			t.Error(why)
		}
	}
	if why, _ := u.begin(time.Unix(0, 0), quota{inFlight: 1}, false); why == "" {
		t.Error("two resumed streams have no places")
	}
}

// TestNobodyWaitsForNothing: what has flowed in is a sum of fractions, which can be less than
// one by what is no nanosecond.
func TestNobodyWaitsForNothing(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	u := allowance{tokens: math.Nextafter(1, 0), at: now}
	why, wait := u.begin(now, quota{rate: 8}, false)
	if why == "" || wait <= 0 {
		t.Errorf("refused (%s), wait %v", why, wait)
	}
	if why, _ := u.begin(now.Add(wait), quota{rate: 8}, false); why != "" {
		t.Errorf("after %v: %s", wait, why)
	}
}

// TestResumesAreBounded: streams that are gone on with are let in beside those that may
// still have the places of their former requests, and no others: a key that begins streams,
// leaves them and comes back to all would have as many at once as it likes.
func TestResumesAreBounded(t *testing.T) {
	u, now := new(allowance), time.Now()
	q := quota{inFlight: 2}
	let := 0
	for range 10 {
		if why, _ := u.begin(now, q, true); why == "" {
			let++
		}
	}
	if let != 4 {
		t.Errorf("%d streams of a key with in_flight=2 are gone on with at once, want 4", let)
	}
	if why, _ := u.begin(now, q, false); why == "" {
		t.Error("a new request is let in beside them")
	}
	for range let {
		u.end()
	}
	if why, _ := u.begin(now, q, true); why != "" {
		t.Errorf("when they have ended: %s", why)
	}
	if why, _ := u.begin(now, quota{rate: 1}, true); why != "" {
		t.Errorf("without in_flight: %s", why)
	}
}

// TestKeyLimits has one key at its limits while another is served, and changes limits.
func TestKeyLimits(t *testing.T) {
	slow, slowLine := newKey(t, "slow")
	rated, ratedLine := newKey(t, "rated")
	free, freeLine := newKey(t, "free")
	file := filepath.Join(t.TempDir(), "keys")
	writeFile(t, file, slowLine+" in_flight=1\n"+ratedLine+"  rate=2\n"+freeLine+"\n")
	shed := make(chan string, 16)
	g := &toy{lessons: map[string]lesson{"user:long\nassistant:": {answer: "ab", after: 1, hang: true}}, cancelled: make(chan kevlard.SessionID, 8)}
	s, err := NewServer(Config{Listen: "127.0.0.1:0", KeysFile: file, Shed: func(why string) { shed <- why }, Log: slog.New(slog.DiscardHandler)}, g, http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	defer s.listener.Close()
	ts := httptest.NewServer(s.Handler())
	t.Cleanup(ts.Close) // after the bodies, whose streams it waits for
	ask := func(key, body string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, ts.URL+chatPath, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	refused := func(name string, resp *http.Response, retry, want string) {
		t.Helper()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != retry ||
			!strings.Contains(string(text), `"type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"`) || !strings.Contains(string(text), want) {
			t.Errorf("%s: %d, Retry-After %q, %s, %v", name, resp.StatusCode, resp.Header.Get("Retry-After"), text, err)
		}
	}
	short := `{` + said("x") + `}`
	running := ask(slow, `{"stream":true,`+said("long")+`}`)
	if running.StatusCode != http.StatusOK {
		t.Fatalf("the first: %d", running.StatusCode)
	}
	refused("a second one", ask(slow, short), "1", "this key has 1 requests running on this node, which is its limit")
	for i := range 4 {
		if resp := ask(free, short); resp.StatusCode != http.StatusOK {
			t.Errorf("request %d of another key: %d", i, resp.StatusCode)
		}
	}
	if resp := ask(slow, short); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("still one at once: %d", resp.StatusCode)
	}
	for range 2 {
		if resp := ask(rated, short); resp.StatusCode != http.StatusOK {
			t.Errorf("within its rate: %d", resp.StatusCode)
		}
	}
	// Another token comes 30 s after the first request, which a slow machine may be over.
	for _, k := range *s.keys.keys.Load() {
		if k.name == "rated" {
			k.usage.mu.Lock()
			k.usage.tokens, k.usage.at = 0, time.Now().Add(time.Hour)
			k.usage.mu.Unlock()
		}
	}
	refused("over its rate", ask(rated, short), "30", "this key has begun its 2 requests a minute on this node")

	// More is allowed now; what runs is not forgotten.
	writeFile(t, file, slowLine+" in_flight=2\n"+ratedLine+"\n"+freeLine+"\n")
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	if resp := ask(slow, `{"stream":true,`+said("long")+`}`); resp.StatusCode != http.StatusOK {
		t.Errorf("a second one with the new limit: %d", resp.StatusCode)
	}
	refused("a third one", ask(slow, short), "1", "this key has 2 requests running")
	if resp := ask(rated, short); resp.StatusCode != http.StatusOK {
		t.Errorf("without its rate: %d", resp.StatusCode)
	}
	if len(shed) != 4 || <-shed != "key_limit" {
		t.Errorf("%d were shed", len(shed))
	}
	running.Body.Close()
	eventually := time.NewTicker(5 * time.Millisecond)
	defer eventually.Stop()
	for range eventually.C {
		if resp := ask(slow, short); resp.StatusCode == http.StatusOK {
			break // a place was given back; the test's own time limit ends this
		}
	}
}
