package daemon

import (
	"context"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node"
)

// takeOver makes this node the owner of a session that nobody alive owns, if its envelope
// was accepted; then it is paused here. It also returns no error when the owner turned out
// to live, or when witnesses have the session and its envelope is still to be seen. Errors
// are *kevlard.Failure: session_not_found (404), session_busy and session_no_quorum (409),
// overloaded (429), draining (503).
func (d *Daemon) takeOver(ctx context.Context, id kevlard.SessionID, accepted bool) error {
	t, err := d.takeovers.ask(ctx, d, func(number uint64) node.Event {
		return node.TakeOver{Session: id, Number: number, Accepted: accepted}
	})
	if err != nil {
		return err
	}
	if t.Err != nil {
		return t.Err
	}
	return nil
}
