package api

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strconv"
)

// access is what somebody may do at the control socket.
type access uint8

const (
	accessNone access = iota
	accessRead        // see everything, change nothing
	accessFull
)

// caller is who opened the other end of a unix socket, as the kernel noted it then.
type caller struct {
	uid, gid uint32
	groups   []uint32 // supplementary ones
}

// doorkeeper decides by who connects: root and the daemon's user may do everything,
// members of the group may look.
type doorkeeper struct {
	owner uint32
	group *uint32 // nil: none
}

// newDoorkeeper looks up a group by name or number; "" is none.
func newDoorkeeper(group string) (doorkeeper, error) {
	k := doorkeeper{owner: uint32(os.Geteuid())}
	if group == "" {
		return k, nil
	}
	if !tellsCallers {
		return k, errors.New("[control] group needs Linux, which tells who calls: leave it out")
	}
	text := group
	if g, err := user.LookupGroup(group); err == nil {
		text = g.Gid
	} else if _, number := strconv.ParseUint(group, 10, 32); number != nil {
		return k, fmt.Errorf("find the group %q of [control] group: %w: make it (groupadd --system NAME), or name another", group, err)
	}
	gid, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return k, fmt.Errorf("the group %q of [control] group has the number %q: %w", group, text, err)
	}
	number := uint32(gid)
	k.group = &number
	return k, nil
}

// hang gives the socket at path the mode that goes with the group.
func (k doorkeeper) hang(path string) error {
	if k.group == nil {
		return os.Chmod(path, 0o600)
	}
	if err := os.Chown(path, -1, int(*k.group)); err != nil {
		return fmt.Errorf("give it to group %d of [control] group: %w: make the daemon's user a member of it (usermod -aG), or name another", *k.group, err)
	}
	return os.Chmod(path, 0o660)
}

// admit returns what a caller may do.
func (k doorkeeper) admit(c caller) access {
	switch {
	case c.uid == 0 || c.uid == k.owner:
		return accessFull
	case k.group != nil && (c.gid == *k.group || slices.Contains(c.groups, *k.group)):
		return accessRead
	}
	return accessNone
}

// readers are the paths that those who may only look can GET. Others cost something, or,
// as profiles of the process do, show more than its state.
func readers() []string {
	return []string{"/members", "/topology", "/sessions", "/status", "/version", "/events", "/metrics"}
}

// guard lets a request through that its caller may make. Connections that are no unix
// sockets have no caller, and come from tests only: what serves the control socket
// listens on nothing else.
func (k doorkeeper) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, ok := r.Context().Value(connContext{}).(*net.UnixConn)
		if !ok {
			writeError(w, newError(http.StatusForbidden, "control_refused", "the control socket was reached by something that is no unix socket"))
			return
		}
		c, err := callerOf(conn)
		if err != nil {
			writeError(w, newError(http.StatusForbidden, "control_refused", "who calls is not known: %v", err))
			return
		}
		switch a := k.admit(c); {
		case a == accessFull:
		case a == accessRead && r.Method == http.MethodGet && slices.Contains(readers(), r.URL.Path):
		case a == accessRead:
			writeError(w, newError(http.StatusForbidden, "control_read_only", "user %d may look here and change nothing, as a member of [control] group: %s %s is for root and the daemon's user", c.uid, r.Method, r.URL.Path))
			return
		default:
			writeError(w, newError(http.StatusForbidden, "control_refused", "user %d is neither root, nor the daemon's user, nor in [control] group", c.uid))
			return
		}
		next.ServeHTTP(w, r)
	})
}
