package mesh

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/transport"
	manet "github.com/multiformats/go-multiaddr/net"
)

// refusal is what makes two refusals equal.
type refusal struct {
	node, host, reason string
	byUs               bool
}

// refusals remembers when each was last reported, so that a peer that dials every
// two seconds is heard once a minute.
type refusals struct {
	mu   sync.Mutex
	last map[refusal]time.Time
}

// due reports whether r may be reported at now, and notes that it is.
func (r *refusals) due(now time.Time, of refusal) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.last[of]; ok && now.Sub(at) < refusalQuiet {
		return false
	}
	if len(r.last) >= maxRefusals {
		clear(r.last)
	}
	r.last[of] = now
	return true
}

// reportRefusal tells log and handler if err is a refusal. It does nothing
// with other errors, which the caller handles.
func (m *Mesh) reportRefusal(node, addr string, err error) {
	refused := (*RefusedError)(nil)
	if !errors.As(err, &refused) {
		return
	}
	host, _, splitErr := net.SplitHostPort(addr)
	if splitErr != nil {
		host = addr
	}
	if !m.refusals.due(time.Now(), refusal{node: node, host: host, reason: refused.Reason, byUs: refused.ByUs}) {
		return
	}
	m.log.Warn("mesh peer refused", "node", node, "addr", addr, "by_us", refused.ByUs, "reason", refused.Reason)
	m.cfg.Handler.Refused(node, addr, refused.Reason)
}

// remoteAddr returns the host:port of the other side.
func remoteAddr(c transport.CapableConn) string {
	addr, err := manet.ToNetAddr(c.RemoteMultiaddr())
	if err != nil {
		return c.RemoteMultiaddr().String()
	}
	return addr.String()
}
