package membership

import (
	"context"
	"log/slog"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kevlard/kevlard"
)

// limiter lets each key pass once per period. It keeps at most maxLogKeys keys.
type limiter struct {
	every time.Duration

	mu   sync.Mutex
	last map[string]time.Time
}

func newLimiter(every time.Duration) *limiter {
	return &limiter{every: every, last: make(map[string]time.Time)}
}

func (l *limiter) allow(key string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.last[key]; ok && now.Sub(at) < l.every {
		return false
	}
	if len(l.last) >= maxLogKeys {
		for k, at := range l.last {
			if now.Sub(at) >= l.every {
				delete(l.last, k)
			}
		}
		if len(l.last) >= maxLogKeys {
			return false
		}
	}
	l.last[key] = now
	return true
}

// bridge turns memberlist's log lines into slog records: the level from the
// "[LEVEL] memberlist:" prefix, repeated complaints once a minute and else at
// debug, and the two that an operator has to act on in words of ours. It is
// called with memberlist's node lock held.
type bridge struct {
	log    *slog.Logger
	ring   string
	lookup func(kevlard.NodeID) (Member, bool)
	limit  *limiter
	// refused is told of a node that does not have the secret, as often as the log is; nil: nobody.
	refused func(addr, reason string)

	first   string        // memberlist's words when it has taken our incarnation; see seniority
	refuted chan struct{} // capacity 1: it has
}

// once warns, at most once a minute per key; between, it says so at debug.
func (b *bridge) once(key, msg string, args ...any) {
	level := slog.LevelWarn
	if !b.limit.allow(key, time.Now()) {
		level = slog.LevelDebug
	}
	b.log.Log(context.Background(), level, msg, args...)
}

// secret warns of a peer whose packets do not decrypt; from is its address.
func (b *bridge) secret(from string) {
	host := from
	if h, _, err := net.SplitHostPort(from); err == nil {
		host = h
	}
	if b.limit.allow("secret "+host, time.Now()) {
		if b.refused != nil {
			b.refused(from, "it "+otherSecret)
		}
		b.log.Warn("a node at "+from+" "+otherSecret, "addr", from, "ring", b.ring,
			"fix", "compare the secret_file of both nodes")
	}
}

var (
	fromPart   = regexp.MustCompile(`from=(\S+)$`)
	levelPart  = regexp.MustCompile(`^\[([A-Z]+)\] (?:memberlist: )?`)
	udpBlocked = regexp.MustCompile(`^Was able to connect to (\S+) over TCP but UDP probes failed`)
	labelWrong = regexp.MustCompile(`with unacceptable label ("(?:[^"\\]|\\.)*")`)
)

// isSecretMismatch recognises memberlist's words for a failed decryption.
func isSecretMismatch(s string) bool {
	return strings.Contains(s, "no installed keys could decrypt") ||
		strings.Contains(s, "remote state is encrypted and encryption is not configured") ||
		strings.Contains(s, "encryption is configured but remote state is not encrypted")
}

// Write takes one line of memberlist's log.
func (b *bridge) Write(p []byte) (int, error) {
	line := strings.TrimSpace(string(p[:min(len(p), maxLogLine)]))
	level := slog.LevelWarn // "Err: ..." has no prefix
	if m := levelPart.FindStringSubmatch(line); m != nil {
		line = line[len(m[0]):]
		switch m[1] {
		case "DEBUG":
			level = slog.LevelDebug
		case "INFO":
			level = slog.LevelInfo
		case "ERR", "ERROR":
			level = slog.LevelError
		}
	}
	if b.first != "" && line == b.first {
		select {
		case b.refuted <- struct{}{}:
		default:
		}
		return len(p), nil
	}
	from := ""
	if m := fromPart.FindStringSubmatch(line); m != nil {
		from = m[1]
	}
	switch {
	case isSecretMismatch(line) && from != "":
		b.secret(from)
		return len(p), nil
	case labelWrong.MatchString(line) && from != "":
		host, _, err := net.SplitHostPort(from)
		if err != nil {
			host = from
		}
		its := labelWrong.FindStringSubmatch(line)[1]
		if name, err := strconv.Unquote(its); err == nil {
			its = name // the log quotes where it has to
		}
		b.once("label "+host, "a node gossips in another ring; its packets are dropped", "addr", from,
			"its_ring", its, "our_ring", b.ring, "fix", "give both the same [ring] name if they belong together")
		return len(p), nil
	}
	if m := udpBlocked.FindStringSubmatch(line); m != nil {
		at := "unknown"
		if who, ok := b.lookup(kevlard.NodeID(m[1])); ok {
			at = who.Addr
		}
		b.once("udp "+at, "UDP to or from a node is blocked, only TCP works; open the gossip port for both in both directions",
			"node", m[1], "addr", at)
		return len(p), nil
	}
	if level > slog.LevelInfo && !b.limit.allow(shape(line), time.Now()) {
		level = slog.LevelDebug
	}
	b.log.Log(context.Background(), level, line, "part", "memberlist")
	return len(p), nil
}

// shape is the part of a line that repeats: it ends where the details begin.
func shape(line string) string {
	if i := strings.IndexAny(line, ":("); i > 0 {
		line = line[:i]
	}
	return "line " + line[:min(len(line), 60)]
}
