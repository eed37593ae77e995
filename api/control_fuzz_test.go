package api

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Whatever is sent to the control socket is answered by JSON, and what is wrong by an
// error that says so.
func FuzzControl(f *testing.F) {
	f.Add("/join", `{"addrs":["10.0.0.1:7946"]}`)
	f.Add("/leave", `{"timeout_ms":9223372036854775807}`)
	f.Add("/drain", `{"node":"","undo":true}`)
	f.Add("/force-leave", `{"node":"n2"}`)
	f.Add("/fetch", `{"model":"toy","lo":0,"hi":2}`)
	f.Add("/keys", `{"do":"add","secret":"AQI=","id":"x"}`)
	f.Add("/keys", `{"secret":"no base64"} {}`)
	f.Fuzz(func(t *testing.T, path, body string) {
		switch path {
		case "/join", "/leave", "/drain", "/force-leave", "/fetch", "/keys":
		default:
			return // the others have no body, or one of the API's
		}
		c := &Control{node: &toyNode{}, gen: &toy{}, log: slog.New(slog.DiscardHandler)}
		w := httptest.NewRecorder()
		c.routes(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
		var e envelope
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil {
			t.Fatalf("%s %q is answered %d %q", path, body, w.Code, w.Body)
		}
		if w.Code != http.StatusOK && (w.Code < 400 || e.Error == nil || e.Error.Message == "") {
			t.Fatalf("%s %q is answered %d %q", path, body, w.Code, w.Body)
		}
	})
}
