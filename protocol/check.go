package protocol

import (
	"errors"
	"fmt"
	"math"

	"github.com/kevlard/kevlard"
)

// checkID refuses ids that are empty or longer than MaxID.
func checkID[S ~string](what string, s S) error {
	if s == "" || len(s) > MaxID {
		return fmt.Errorf("%s of %d bytes, want 1 to %d", what, len(s), MaxID)
	}
	return nil
}

// checkLength is checkID for what may be empty.
func checkLength[S ~string](what string, s S) error {
	if len(s) > MaxID {
		return fmt.Errorf("%s of %d bytes, want at most %d", what, len(s), MaxID)
	}
	return nil
}

func checkRange(what string, v, lo, hi int) error {
	if v < lo || v > hi {
		return fmt.Errorf("%s is %d, want %d to %d", what, v, lo, hi)
	}
	return nil
}

func checkSession(id kevlard.SessionID, f kevlard.Fence, lo int) error {
	err := errors.Join(checkID("session", id), checkRange("lo", lo, 0, math.MaxInt32))
	if f.Epoch == 0 || f.Term == 0 {
		err = errors.Join(err, fmt.Errorf("fence is %v, both parts count from 1", f))
	}
	return err
}

func (m Prepare) check() error {
	l := m.Stage.Layers
	err := errors.Join(checkSession(m.Session, m.Fence, l.Lo), checkID("owner boot", m.OwnerBoot),
		checkRange("tokens", len(m.Tokens), 1, MaxTokens), checkRange("positions", m.Positions, len(m.Tokens), MaxTokens),
		checkRange("credit", m.Credit, 1, MaxItemTokens*16), checkRange("hi", l.Hi, l.Lo+1, math.MaxInt32))
	if m.Last != (m.Next == "") {
		err = errors.Join(err, errors.New("last stage and next stage exclude each other"))
	}
	if len(m.Next) > MaxID {
		err = errors.Join(err, fmt.Errorf("next node of %d bytes, want at most %d", len(m.Next), MaxID))
	}
	if bad := m.Sampling.Check(); bad != nil {
		err = errors.Join(err, bad)
	}
	return errors.Join(err, checkLength("standby", m.Standby), checkLength("source", m.Source), checkRange("mark", m.Mark, 0, MaxTokens), checkRange("await", m.Await, 0, MaxTokens), checkRange("salt bytes", len(m.Salt), 0, MaxSalt))
}

func (m Prepared) check() error {
	return errors.Join(checkSession(m.Session, m.Fence, m.Lo), checkRange("have", m.Have, 0, MaxTokens))
}

func (m Close) check() error { return checkSession(m.Session, m.Fence, m.Lo) }

func (m Refused) check() error {
	return errors.Join(checkSession(m.Session, m.Fence, m.Lo), checkRange("pos", m.Pos, 0, MaxTokens))
}

func (m Step) check() error {
	err := errors.Join(checkSession(m.Session, m.Fence, 0), checkRange("next", m.Next, 1, MaxTokens), checkMarks(m.Marks))
	if m.Logprobs != nil {
		err = errors.Join(err, m.Logprobs.Check())
	}
	return err
}

// checkMarks checks the watermarks of the stages of a route.
func checkMarks(marks []kevlard.Pos) error {
	err := checkRange("marks", len(marks), 0, MaxHops)
	for _, p := range marks {
		err = errors.Join(err, checkRange("mark", p, -1, MaxTokens))
	}
	return err
}

func (m Probe) check() error { return checkSession(m.Session, m.Fence, m.Lo) }

func (m Probed) check() error {
	return errors.Join(checkSession(m.Session, m.Fence, m.Lo), checkRange("received", m.Received, 0, MaxTokens), checkRange("done", m.Done, 0, MaxTokens))
}

func (m Ping) check() error {
	return errors.Join(checkRange("sessions", m.Sessions, 0, math.MaxInt32), checkRange("free", m.Free, 0, math.MaxInt32))
}

func (m Pong) check() error {
	return errors.Join(checkRange("sessions", m.Sessions, 0, math.MaxInt32), checkRange("free", m.Free, 0, math.MaxInt32))
}

func (m Lost) check() error { return checkSession(m.Session, m.Fence, m.Lo) }

func (m Renew) check() error {
	err := checkRange("sessions", len(m.Sessions), 1, MaxRenew)
	for _, id := range m.Sessions {
		err = errors.Join(err, checkID("session", id))
	}
	return err
}

func (it Item) check() error {
	err := errors.Join(checkSession(it.Session, it.Fence, it.Lo), checkRange("tokens", len(it.Tokens), 1, MaxItemTokens),
		checkRange("pos", it.Pos, 0, MaxTokens), checkRange("width", it.Width, 0, MaxWidth), checkMarks(it.Marks))
	if (it.Lo == 0) != (it.Width == 0) {
		err = errors.Join(err, fmt.Errorf("rows %d bytes wide for a stage that starts at layer %d", it.Width, it.Lo))
	}
	return err
}

func (m Replicate) check() error {
	return errors.Join(checkSession(m.Session, m.Fence, m.Lo), checkLength("standby", m.Standby))
}

func checkStage(k kevlard.StageKey) error {
	return errors.Join(checkRange("lo", k.Layers.Lo, 0, math.MaxInt32), checkRange("hi", k.Layers.Hi, k.Layers.Lo+1, math.MaxInt32))
}

func (m Offer) check() error {
	return errors.Join(checkSession(m.Session, m.Fence, m.Stage.Layers.Lo), checkStage(m.Stage), checkID("owner", m.Owner),
		checkID("owner boot", m.OwnerBoot), checkID("class", m.Class), checkRange("cell bytes", m.CellBytes, 1, MaxCell),
		checkRange("salt bytes", len(m.Salt), 0, MaxSalt), checkRange("tokens", len(m.Tokens), 1, MaxTokens), checkRange("positions", m.Positions, len(m.Tokens), MaxTokens))
}

func (m Stored) check() error {
	return errors.Join(checkSession(m.Session, m.Fence, m.Stage.Layers.Lo), checkStage(m.Stage), checkRange("through", m.Through, 0, MaxTokens))
}

func (m StandbyLost) check() error {
	return errors.Join(checkSession(m.Session, m.Fence, m.Lo), checkID("standby", m.Standby))
}

func (r Rows) check() error {
	return errors.Join(checkSession(r.Session, r.Fence, r.Stage.Layers.Lo), checkStage(r.Stage), checkID("class", r.Class),
		checkRange("cell bytes", r.CellBytes, 1, MaxCell), checkRange("tokens", len(r.Tokens), 1, MaxRowsTokens),
		checkRange("pos", r.Pos, 0, MaxTokens-len(r.Tokens)), checkRange("sums", len(r.Sums), len(r.Tokens), len(r.Tokens)))
}

func (m Fetch) check() error {
	return errors.Join(checkSession(m.Session, m.Fence, m.Stage.Layers.Lo), checkStage(m.Stage), checkID("class", m.Class),
		checkRange("salt bytes", len(m.Salt), 0, MaxSalt), checkRange("tokens", len(m.Tokens), 1, MaxTokens), checkRange("from", m.From, 0, len(m.Tokens)))
}

func (m Seek) check() error {
	return errors.Join(checkID("session", m.Session), checkRange("salt bytes", len(m.Salt), 0, MaxSalt), checkRange("tokens", len(m.Tokens), 1, MaxSeekTokens))
}

func (m Sought) check() error {
	err := errors.Join(checkID("session", m.Session), checkRange("load", m.Load, 0, math.MaxInt32), checkRange("stages", len(m.Stages), 0, MaxHops))
	for _, h := range m.Stages {
		err = errors.Join(err, checkRange("lo", h.Layers.Lo, 0, math.MaxInt32), checkRange("hi", h.Layers.Hi, h.Layers.Lo+1, math.MaxInt32),
			checkLength("class", h.Class), checkRange("positions", h.Positions, 0, MaxTokens))
	}
	return err
}

func (m Fetched) check() error {
	return errors.Join(checkSession(m.Session, m.Fence, m.Stage.Layers.Lo), checkStage(m.Stage), checkRange("through", m.Through, 0, MaxTokens))
}
