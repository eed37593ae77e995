package api

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/kevlard/kevlard/daemon/report"
)

// ErrNoDaemon says that nothing answers on the control socket.
var ErrNoDaemon = errors.New("no daemon answers")

// Client speaks to the daemon of this machine through its control socket. Its
// methods fail with ErrNoDaemon where there is none, and with *Error where it
// refused.
type Client struct {
	path     string
	http     *http.Client
	patience time.Duration // for one document, where the caller has set no bound; 0: answerTimeout
}

// NewClient returns a client of the daemon at the given socket. It does not
// connect yet.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	return &Client{path: path, http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// Members returns the ring as the daemon sees it.
func (c *Client) Members(ctx context.Context) (report.Members, error) {
	return get[report.Members](ctx, c, "/members")
}

// Topology returns the models and their pipelines.
func (c *Client) Topology(ctx context.Context) (report.Topology, error) {
	return get[report.Topology](ctx, c, "/topology")
}

// Sessions returns the live sessions owned by this node, or by all.
func (c *Client) Sessions(ctx context.Context, all bool) (report.Sessions, error) {
	return get[report.Sessions](ctx, c, "/sessions?all="+strconv.FormatBool(all))
}

// Status returns the daemon's health.
func (c *Client) Status(ctx context.Context) (report.Status, error) {
	return get[report.Status](ctx, c, "/status")
}

// Clocks compares the clocks of the other members with the daemon's.
func (c *Client) Clocks(ctx context.Context) (report.Clocks, error) {
	return get[report.Clocks](ctx, c, "/clocks")
}

// Version returns the version of the daemon, which may not be ours.
func (c *Client) Version(ctx context.Context) (Version, error) {
	return get[Version](ctx, c, "/version")
}

// Join asks the daemon to join a ring at the given gossip addresses.
func (c *Client) Join(ctx context.Context, addrs []string) (report.Join, error) {
	return send[report.Join](ctx, c, "/join", joinQuery{Addrs: addrs})
}

// Leave asks the daemon to drain, leave and stop.
func (c *Client) Leave(ctx context.Context, timeout time.Duration) (report.Leave, error) {
	return send[report.Leave](ctx, c, "/leave", leaveQuery{TimeoutMS: timeout.Milliseconds()})
}

// Drain asks a node ("": this one) to take no new sessions, or to take them again.
func (c *Client) Drain(ctx context.Context, node string, undo bool) error {
	_, err := send[struct{}](ctx, c, "/drain", drainQuery{Node: node, Undo: undo})
	return err
}

// ForceLeave declares a dead node gone.
func (c *Client) ForceLeave(ctx context.Context, node string) error {
	_, err := send[struct{}](ctx, c, "/force-leave", drainQuery{Node: node})
	return err
}

// Keys lists or changes the cluster secrets of all members: do is list, add (with
// secret), use or remove (with the ID of one).
func (c *Client) Keys(ctx context.Context, do string, secret []byte, id string) (report.Keys, error) {
	return send[report.Keys](ctx, c, "/keys", keysQuery{Do: do, Secret: secret, ID: id})
}

// Events hands out the events of the last since (0: all that are kept), and with
// follow also those to come, until ctx ends or emit fails.
func (c *Client) Events(ctx context.Context, since time.Duration, follow bool, emit func(report.Event) error) error {
	q := url.Values{"follow": {strconv.FormatBool(follow)}}
	if since > 0 {
		q.Set("since", since.String())
	}
	return stream(ctx, c, http.MethodGet, "/events?"+q.Encode(), nil, emit)
}

// Generate runs one completion; body is that of POST /v1/completions. Every line of
// the answer goes to emit.
func (c *Client) Generate(ctx context.Context, body any, emit func(Chunk) error) error {
	return c.complete(ctx, "/generate", body, emit)
}

// Chat is like Generate, with a body of POST /v1/chat/completions.
func (c *Client) Chat(ctx context.Context, body any, emit func(Chunk) error) error {
	return c.complete(ctx, "/chat", body, emit)
}

func (c *Client) complete(ctx context.Context, path string, body any, emit func(Chunk) error) error {
	ended := false
	err := stream(ctx, c, http.MethodPost, path, body, func(chunk Chunk) error {
		if chunk.Error != nil {
			// The answer had begun, so the HTTP status was 200; the line has its own.
			chunk.Error.Status = cmp.Or(chunk.Status, http.StatusInternalServerError)
			return chunk.Error
		}
		ended = chunk.FinishReason != ""
		return emit(chunk)
	})
	if err == nil && !ended {
		return fmt.Errorf("%s: the daemon at %s broke off its answer: see its log", path[1:], c.path)
	}
	return err
}

func get[T any](ctx context.Context, c *Client, path string) (T, error) {
	return document[T](ctx, c, http.MethodGet, path, nil)
}

func send[T any](ctx context.Context, c *Client, path string, body any) (T, error) {
	return document[T](ctx, c, http.MethodPost, path, body)
}

// document makes a request whose answer is one JSON document. Unless ctx has a bound, it
// is waited for as long as c's patience: a daemon that is stopped takes requests and does nothing.
func document[T any](ctx context.Context, c *Client, method, path string, body any) (T, error) {
	var v T
	_, bounded := ctx.Deadline()
	patience := cmp.Or(c.patience, answerTimeout)
	if !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	resp, err := c.do(ctx, method, path, body)
	if errors.Is(err, context.DeadlineExceeded) && !bounded {
		return v, fmt.Errorf("ask the daemon at %s: no answer within %v: see its log (journalctl -u kevlard), or restart it: %w", c.path, patience, context.DeadlineExceeded)
	}
	if err != nil {
		return v, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxControlAnswer)).Decode(&v); err != nil {
		return v, fmt.Errorf("read the daemon's answer to %s %s: %w", method, path, err)
	}
	return v, nil
}

// awake returns why nothing can be expected of the daemon. For the first line of a stream
// there is no bound, since computing takes as long as it takes.
func (c *Client) awake(ctx context.Context) error {
	_, err := c.Version(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil // the request itself will show what else is wrong
}

// stream makes a request whose answer is JSON lines.
func stream[T any](ctx context.Context, c *Client, method, path string, body any, emit func(T) error) error {
	if err := c.awake(ctx); err != nil {
		return err
	}
	resp, err := c.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	scanner := bufio.NewScanner(resp.Body)
	scanner.Buffer(nil, maxControlAnswer)
	for scanner.Scan() {
		var v T
		if err := json.Unmarshal(scanner.Bytes(), &v); err != nil {
			return fmt.Errorf("read the daemon's answer to %s %s: %w", method, path, err)
		}
		if err := emit(v); err != nil {
			return err
		}
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("read the daemon's answer to %s %s: %w", method, path, err)
	}
	return nil
}

// do makes a request and returns an answer of status 200.
func (c *Client) do(ctx context.Context, method, path string, body any) (*http.Response, error) {
	payload, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode the request %s %s: %w", method, path, err)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://kevlard"+path, bytes.NewReader(payload))
	if err != nil {
		return nil, fmt.Errorf("make the request %s %s: %w", method, path, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return nil, newError(http.StatusForbidden, "control_refused", "ask the daemon at %s: this user may not open the socket: root, the daemon's user and, to look, members of [control] group may", c.path)
		}
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
			return nil, fmt.Errorf("ask the daemon at %s: %w (%v): start one with kevlard agent, or name its socket with --control", c.path, ErrNoDaemon, op.Err)
		}
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // its URL is no address of anything
		}
		return nil, fmt.Errorf("ask the daemon at %s: %w", c.path, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxErrors))
	if err != nil {
		return nil, fmt.Errorf("read the daemon's error: %w", err)
	}
	var e envelope
	if json.Unmarshal(text, &e) != nil || e.Error == nil {
		return nil, fmt.Errorf("ask the daemon at %s: it answered %s: %.200q", c.path, resp.Status, text)
	}
	e.Error.Status = resp.StatusCode
	return nil, e.Error
}
