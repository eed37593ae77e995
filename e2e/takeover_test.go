package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kevlard/kevlard/client"
	"github.com/kevlard/kevlard/internal/devmesh"
)

// TestOwnerDies kills the gateway that owns the sessions of a stream. Its client goes on
// at the other gateway, which takes the sessions over, and misses nothing.
func TestOwnerDies(t *testing.T) {
	m := start(t, devmesh.Options{Nodes: 2, Stages: 2, Gateways: 2})
	owner, other := m.Gateway(1), m.Gateway(2)
	for i, body := range resumable(m) {
		body["stream"] = true
		var want answer
		if err := client.New(other.APIURL()).Stream(t.Context(), "/v1/completions", body, want.add); err != nil {
			t.Fatal(err)
		}
		var got answer
		events, killed := 0, false
		err := client.New(owner.APIURL(), other.APIURL()).Stream(t.Context(), "/v1/completions", body, func(data json.RawMessage) error {
			if events++; events == 6 {
				killed = true
				if err := owner.Kill(syscall.SIGKILL); err != nil {
					return err
				}
			}
			return got.add(data)
		})
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if !killed || !got.same(want) {
			t.Errorf("request %d, killed %v: got\n%+v\nwant\n%+v", i, killed, got, want)
		}
		m.restart(t, owner)
	}
	if n := m.sum(t, "kevlard_takeovers_total"); n == 0 {
		t.Error("no session was taken over: the streams ended before their owner died")
	}
}

// TestOwnerWakes freezes the gateway that owns a stream. The client goes on at the other
// one; the old owner, when it wakes up, shows nothing wrong and does not finish.
func TestOwnerWakes(t *testing.T) {
	m := start(t, devmesh.Options{Nodes: 2, Stages: 2, Gateways: 2})
	owner, other := m.Gateway(1), m.Gateway(2)
	body := map[string]any{"model": m.ModelName(), "prompt": "The soldier", "max_tokens": 600, "temperature": 0.8, "seed": 5, "ignore_eos": true, "stream": true}
	var want, got, old answer
	if err := client.New(other.APIURL()).Stream(t.Context(), "/v1/completions", body, want.add); err != nil {
		t.Fatal(err)
	}
	resp := posted(t, owner, body, "")
	defer resp.Body.Close()
	events := readEvents(resp.Body)
	var last line
	for range 6 {
		last = <-events
		for _, a := range []*answer{&got, &old} {
			if err := a.add(json.RawMessage(last.data)); err != nil {
				t.Fatalf("%+v: %v", last, err)
			}
		}
	}
	if err := owner.Kill(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var again *http.Response
	for until := time.Now().Add(time.Minute); ; {
		if again = posted(t, other, body, last.id); again.StatusCode == http.StatusOK {
			break
		}
		again.Body.Close()
		if time.Now().After(until) {
			t.Fatalf("the session is not taken over: %s", again.Status)
		}
	}
	defer again.Body.Close()
	for ev := range readEvents(again.Body) {
		if ev.data == "[DONE]" {
			continue
		}
		if err := got.add(json.RawMessage(ev.data)); err != nil {
			t.Fatalf("%+v: %v", ev, err)
		}
	}
	if got.choices != want.choices {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	if err := owner.Kill(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for ev := range events {
		if strings.Contains(ev.data, `"error"`) {
			continue
		}
		if err := old.add(json.RawMessage(ev.data)); err != nil {
			t.Fatalf("%+v: %v", ev, err)
		}
	}
	if x := old.choices[0]; !strings.HasPrefix(want.choices[0].text, x.text) || x.finish != "" {
		t.Errorf("the old owner streams %q and finishes with %q", x.text, x.finish)
	}
	if n := m.sum(t, "kevlard_takeovers_total"); n != 1 {
		t.Errorf("%v takeovers are counted, want 1", n)
	}
}
