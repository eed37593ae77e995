package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/membership"
	"github.com/kevlard/kevlard/protocol"
)

// What nodes ask each other by mesh calls in JSON is read here and nowhere else: calls of
// members, and what they answer. A call is at most 1 MiB (package mesh).

// checked is a document of a member. check names what this node would not want to work
// with.
type checked interface{ check() error }

// readCall decodes a document of at most maxCall bytes into v, which is empty.
func readCall(what string, b []byte, v checked) error {
	if len(b) > maxCall {
		return fmt.Errorf("decode %s: %d bytes, at most %d are taken", what, len(b), maxCall)
	}
	err := json.Unmarshal(b, v)
	if err == nil {
		err = v.check()
	}
	if _, secret := v.(*keysCall); secret && err != nil {
		err = errors.New("not JSON, or not of a keys call") // the error might quote the secret
	}
	if err != nil {
		return fmt.Errorf("decode %s: %w", what, err)
	}
	return nil
}

// checkName refuses what no node, boot or session is called: others show these to people.
func checkName[S ~string](what string, s S) error {
	if s == "" || len(s) > protocol.MaxID || strings.ContainsFunc(string(s), unicode.IsControl) {
		return fmt.Errorf("%s is %.40q: want 1 to %d bytes without control characters", what, s, protocol.MaxID)
	}
	return nil
}

func (*drainCall) check() error { return nil }

func (c *findCall) check() error { return checkName("session", c.Session) }

func (w *whereabouts) check() error {
	if len(w.Envelope) > protocol.MaxEnvelope {
		return fmt.Errorf("envelope of %d bytes, want at most %d", len(w.Envelope), protocol.MaxEnvelope)
	}
	return nil
}

func (c *linkCall) check() error {
	return errors.Join(checkName("node", c.Node), checkName("boot", c.Boot))
}

func (*linkAnswer) check() error { return nil }

func (*clockAnswer) check() error { return nil }

func (c *keysCall) check() error {
	if n := len(c.Secret); n != 0 && n != membership.SecretSize || len(c.ID) > protocol.MaxID {
		return fmt.Errorf("secret of %d bytes and id of %d", n, len(c.ID))
	}
	return nil
}

func (a *keysAnswer) check() error {
	if len(a.Secrets) > membership.MaxSecrets {
		return fmt.Errorf("%d secrets, want at most %d", len(a.Secrets), membership.MaxSecrets)
	}
	var err error
	for _, id := range a.Secrets {
		err = errors.Join(err, checkName("secret's id", id))
	}
	if a.Configured != "" {
		err = errors.Join(err, checkName("configured secret's id", a.Configured))
	}
	return err
}

// sessionsAnswer is what a node says of the sessions that it owns.
type sessionsAnswer struct {
	report.Sessions
	of kevlard.NodeID // who was asked
}

func (a *sessionsAnswer) check() error {
	for i, s := range a.Sessions.Sessions {
		err := errors.Join(checkName("id", s.ID), checkName("model", s.Model), checkName("state", s.State))
		if s.Owner != string(a.of) {
			err = errors.Join(err, fmt.Errorf("owner is %.40q, and %s was asked", s.Owner, a.of))
		}
		if len(s.Route) > protocol.MaxHops || len(s.Standbys) > protocol.MaxHops || len(s.ReplicatedThrough) > protocol.MaxHops || len(s.Witnesses) > protocol.MaxHops {
			err = errors.Join(err, fmt.Errorf("route, standbys or witnesses of more than %d", protocol.MaxHops))
		}
		names := append(append([]string{}, s.Route...), s.Witnesses...)
		for _, n := range s.Standbys {
			names = append(names, n...)
		}
		for _, n := range names {
			err = errors.Join(err, checkName("node", n))
		}
		if err != nil {
			return fmt.Errorf("session %d: %w", i, err)
		}
	}
	return nil
}
