package sdk

import (
	_ "embed"
	"encoding/json"
	"maps"
	"strings"
	"testing"
)

//go:embed rows.json
var rowsJSON []byte

// row is one kind of answer that a client can ask for. Fields of the request that
// every row shares are filled in later.
type row struct {
	Name     string         `json:"name"`
	Endpoint string         `json:"endpoint"` // chat or completion
	Body     map[string]any `json:"body"`
	Usage    bool           `json:"usage"`  // ask for usage when streaming
	Finish   string         `json:"finish"` // the expected finish_reason
	Tokens   int            `json:"tokens"` // of all choices together; 0: it depends
	Choices  int            `json:"choices"`
	Prompts  int            `json:"prompts"` // of equal length
	Top      int            `json:"top"`     // alternatives of each token's logprobs
	Needs    string         `json:"needs"`   // what the row is about, if not every client of the suite asks for it

	// StopAt is a range of characters of the answer without stop strings, which
	// becomes the stop string; Decoys are ranges whose text then goes on otherwise, so
	// that it must be held back and then sent.
	StopAt []int   `json:"stop_at"`
	Decoys [][]int `json:"decoys"`
}

// refusal is a request that must fail before anything is answered.
type refusal struct {
	Name     string         `json:"name"`
	Endpoint string         `json:"endpoint"`
	Body     map[string]any `json:"body"`
	Status   int            `json:"status"`
	Param    string         `json:"param"`
	Code     string         `json:"code"` // "": any
}

type table struct {
	Rows    []row     `json:"rows"`
	Refused []refusal `json:"refused"`
}

func readTable(t *testing.T) table {
	t.Helper()
	var out table
	if err := json.Unmarshal(rowsJSON, &out); err != nil {
		t.Fatalf("rows.json: %v", err)
	}
	return out
}

// with returns the body with the model's name and a field more.
func (r row) with(model string, field string, value any) row {
	r.Body = maps.Clone(r.Body)
	if r.Body["model"] == nil {
		r.Body["model"] = model
	}
	if field != "" {
		r.Body[field] = value
	}
	return r
}

// stops makes the stop strings out of the answer without them. It returns what the
// answer then is.
func (r row) stops(whole string) (stops []string, want string) {
	text := []rune(whole)
	want = whole
	if r.StopAt != nil {
		stop := string(text[r.StopAt[0]:r.StopAt[1]])
		want = whole[:strings.Index(whole, stop)]
		stops = append(stops, stop)
	}
	for _, d := range r.Decoys {
		stops = append(stops, string(text[d[0]:d[1]])+"\u2603")
	}
	return stops, want
}
