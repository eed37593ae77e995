package sdk

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/openai/openai-go/v3"
)

// refused makes a request that must fail before anything is answered: with an HTTP
// status and OpenAI's envelope, streamed or not.
func (s *suite) refused(t *testing.T, r refusal) {
	request := row{Endpoint: r.Endpoint, Body: r.Body}.with(s.ModelName(), "", nil)
	for _, streamed := range []bool{false, true} {
		_, err := ask(t.Context(), s.client, request, streamed, nil)
		e, ok := errors.AsType[*openai.Error](err)
		if !ok {
			t.Fatalf("streamed %t: error %v, want the client's error for HTTP %d", streamed, err, r.Status)
		}
		if e.StatusCode != r.Status || e.Param != r.Param || e.Message == "" || e.Type != "invalid_request_error" || r.Code != "" && e.Code != r.Code {
			t.Errorf("streamed %t: HTTP %d, %s; want %d, param %s, code %q", streamed, e.StatusCode, e.RawJSON(), r.Status, r.Param, r.Code)
		}
		if ct := e.Response.Header.Get("Content-Type"); ct != "application/json" {
			t.Errorf("streamed %t: content type %q", streamed, ct)
		}
	}
}

// models lists and retrieves models, also right after a host was killed: a list that
// asked a dead host would hang.
func (s *suite) models(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), endWithin)
	defer cancel()
	look := func() error {
		list, err := s.client.Models.List(ctx)
		if err != nil {
			return err
		}
		if list.Object != "list" || len(list.Data) != 1 {
			return fmt.Errorf("the list is %s", list.RawJSON())
		}
		m := list.Data[0]
		if m.ID != s.ModelName() || m.Object != "model" || m.Created == 0 || m.OwnedBy == "" {
			return fmt.Errorf("the model is %s", m.RawJSON())
		}
		one, err := s.client.Models.Get(ctx, m.ID)
		if err == nil && one.ID != m.ID {
			err = fmt.Errorf("asked for %s and got %s", m.ID, one.RawJSON())
		}
		return err
	}
	if err := look(); err != nil {
		t.Fatal(err)
	}
	_, err := s.client.Models.Get(ctx, "no-such-model")
	if e, ok := errors.AsType[*openai.Error](err); !ok || e.StatusCode != 404 || e.Code != "model_not_found" {
		t.Errorf("an unknown model: %v, want 404 model_not_found", err)
	}
	if err := s.outage(ctx, 1); err != nil {
		t.Fatal(err)
	}
	err = look()
	if err := s.heal(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatalf("with both hosts of a stage dead: %v", err)
	}
}
