package api

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"
)

// quota bounds what one key may ask of this node; 0 is no bound.
type quota struct {
	inFlight int // requests at once
	rate     int // requests a minute, as many of them at once after a pause
}

// parseQuota reads what follows the hash in a line of the keys file.
func parseQuota(words []string) (q quota, err error) {
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		n, bad := strconv.Atoi(value)
		field := map[string]*int{"in_flight": &q.inFlight, "rate": &q.rate}[name]
		switch {
		case field == nil:
			return quota{}, errors.New("after the hash come only in_flight=N and rate=N") // what is there may be a key
		case bad != nil || n < 1 || n > maxQuota:
			return quota{}, fmt.Errorf("%s is not a number from 1 to %d", name, maxQuota)
		case *field != 0:
			return quota{}, fmt.Errorf("%s is there twice", name)
		}
		*field = n
	}
	return q, nil
}

// allowance is what a key has under way, and what it may still begin.
type allowance struct {
	mu       sync.Mutex
	inFlight int
	tokens   float64 // requests that may begin now, up to the rate; valid at that time
	at       time.Time
}

// begin takes a place for one request, to be given back with end. Else it returns why
// not, and when to try again. A request that goes on with a stream costs no token, and
// twice as many may be under way with it: its client has been cut off, perhaps a moment
// ago, and its former request may still have its place. No more, or a key could begin
// streams, leave them, and come back to all at once.
func (u *allowance) begin(now time.Time, q quota, resumes bool) (why string, wait time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	rate := float64(q.rate)
	if u.at.IsZero() {
		u.tokens = rate
	} else if now.After(u.at) {
		u.tokens += now.Sub(u.at).Minutes() * rate
	}
	u.tokens, u.at = min(u.tokens, rate), now // the rate may have been changed
	switch {
	case resumes && (q.inFlight == 0 || u.inFlight < 2*q.inFlight):
	case q.inFlight > 0 && u.inFlight >= q.inFlight:
		return fmt.Sprintf("this key has %d requests running on this node, which is its limit", u.inFlight), time.Second
	case q.rate > 0 && u.tokens < 1:
		missing := time.Duration(math.Ceil((1 - u.tokens) / rate * float64(time.Minute))) // a request that is all but there takes a nanosecond
		return fmt.Sprintf("this key has begun its %d requests a minute on this node", q.rate), missing
	case q.rate > 0:
		u.tokens--
	}
	u.inFlight++
	return "", 0
}

// end gives a place back.
func (u *allowance) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.inFlight--
}
