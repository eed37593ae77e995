package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/membership"
	"github.com/kevlard/kevlard/node"
)

// What can be done with the secrets of a node.
const (
	keysList   = "list"
	keysAdd    = "add"
	keysUse    = "use"
	keysRemove = "remove"
)

// keysCall is the body of methodKeys, in JSON; keysAnswer answers it.
type keysCall struct {
	Do     string `json:"do"`
	Secret []byte `json:"secret,omitempty"` // of add
	ID     string `json:"id,omitempty"`     // of use and remove
}

type keysAnswer struct {
	Secrets    []string `json:"secrets"`    // IDs, the one in use first
	Configured string   `json:"configured"` // ID of the one in secret_file
}

// secrets is the keyring of this node and its changes.
type secrets struct {
	dir        string                 // "" keeps nothing
	configured []byte                 // at the start of this daemon
	file       func() ([]byte, error) // reads secret_file again; nil: it is as it was
	apply      []func([][]byte) error // ring and mesh

	mu   sync.Mutex
	keys keyring
}

// do changes the keyring: on disk first, so that what is in use is never lost.
func (s *secrets) do(c keysCall) (keysAnswer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, err := s.keys, error(nil)
	switch c.Do {
	case keysList:
	case keysAdd:
		next, err = s.keys.add(c.Secret)
	case keysUse:
		next, err = s.keys.use(c.ID)
	case keysRemove:
		next, err = s.keys.remove(c.ID)
	default:
		err = fmt.Errorf("keys: this build can't %.20q", c.Do)
	}
	inFile, ok := s.inFile()
	if err == nil && !slices.Equal(next.ids(), s.keys.ids()) {
		if s.dir != "" {
			configured := inFile
			if !ok {
				configured = membership.SecretID(s.configured)
			}
			err = saveKeyring(s.dir, configured, next)
		}
		for _, apply := range s.apply {
			if err == nil {
				err = apply(next)
			}
		}
		if err == nil {
			s.keys = next
		}
	}
	return keysAnswer{Secrets: s.keys.ids(), Configured: inFile}, err
}

// inFile names the secret that the next start would find in secret_file, ok = false where
// it would find none. The last step of a change replaces that file while the node runs.
func (s *secrets) inFile() (id string, ok bool) {
	secret := s.configured
	if s.file != nil {
		var err error
		if secret, err = s.file(); err != nil {
			return "", false // shown as a file that lacks the secret in use, which it does
		}
	}
	return membership.SecretID(secret), true
}

// Keys lists or changes the cluster secrets of all members that are alive, this one
// included: do is list, add (with secret), use or remove (with the id of one). A
// member that fails is named in the result, and the others go on. It is refused, with
// nothing changed, to use what some member does not hold, and to remove what some
// member uses: that would split the ring. Dead members are not asked; they are let in
// again once they have got the secret in use.
func (d *Daemon) Keys(ctx context.Context, do string, secret []byte, id string) (report.Keys, error) {
	switch do {
	case keysList, keysUse, keysRemove:
	case keysAdd:
		if len(secret) != membership.SecretSize {
			return report.Keys{}, fmt.Errorf("keys add: %d bytes, want %d: make a secret with `kevlard keygen`", len(secret), membership.SecretSize)
		}
	default:
		return report.Keys{}, fmt.Errorf("keys: %.20q: want list, add, use or remove", do)
	}
	have := d.askKeys(ctx, keysCall{Do: keysList})
	if err := keysAllowed(have, do, id); err != nil || do == keysList {
		return have, err
	}
	out := d.askKeys(ctx, keysCall{Do: do, Secret: secret, ID: id})
	if do == keysAdd {
		id = membership.SecretID(secret)
	}
	d.report(node.Report{Type: "keys-" + do, Detail: id})
	return out, nil
}

// keysAllowed returns why use or remove would split the ring that have describes.
func keysAllowed(have report.Keys, do, id string) error {
	var bad []string
	known := false
	for _, n := range have.Nodes {
		known = known || slices.Contains(n.Secrets, id)
		switch {
		case n.State != "alive":
		case do != keysUse && do != keysRemove:
		case n.Error != "":
			bad = append(bad, fmt.Sprintf("%s did not say (%s)", n.Node, n.Error))
		case do == keysUse && !slices.Contains(n.Secrets, id):
			bad = append(bad, n.Node+" does not hold it")
		case do == keysRemove && len(n.Secrets) > 0 && n.Secrets[0] == id:
			bad = append(bad, n.Node+" uses it")
		}
	}
	switch {
	case (do == keysUse || do == keysRemove) && !known:
		return &kevlard.Failure{Code: "no_such_secret", Status: 404, Message: fmt.Sprintf("keys %s %s: no member that answers holds such a secret; see `kevlard keys list`", do, id)}
	case len(bad) > 0:
		return &kevlard.Failure{Code: "keys_refused", Status: 409, Message: fmt.Sprintf("keys %s %s: nothing was changed: %s", do, id, strings.Join(bad, ", "))}
	}
	return nil
}

// askKeys makes one call to every member that is alive, and does it here.
func (d *Daemon) askKeys(ctx context.Context, c keysCall) report.Keys {
	out := report.Keys{Nodes: []report.NodeKeys{}}
	body, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("daemon: encode a keys call: %v", err)) // strings and bytes
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var mu sync.Mutex
	var asks errgroup.Group
	asks.SetLimit(maxAsks)
	for _, m := range d.ring.Members() {
		n := report.NodeKeys{Node: string(m.Name), State: string(m.State), Secrets: []string{}}
		switch m.State {
		case membership.StateLeft:
			continue
		case membership.StateDead:
			n.Error = "dead, not asked"
			mu.Lock()
			out.Nodes = append(out.Nodes, n)
			mu.Unlock()
			continue
		}
		asks.Go(func() error {
			a, err := d.askNodeKeys(ctx, m.Name, c, body)
			n.Configured = a.Configured
			if n.Secrets = a.Secrets; n.Secrets == nil {
				n.Secrets = []string{}
			}
			if err != nil {
				n.Error = err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			out.Nodes = append(out.Nodes, n)
			return nil
		})
	}
	_ = asks.Wait() // the functions return nil: failures are in the result
	slices.SortFunc(out.Nodes, func(a, b report.NodeKeys) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

func (d *Daemon) askNodeKeys(ctx context.Context, to kevlard.NodeID, c keysCall, body []byte) (a keysAnswer, err error) {
	if to == d.cfg.Name {
		return d.secrets.do(c)
	}
	b, err := d.mesh.Call(ctx, to, methodKeys, body)
	if err == nil {
		err = readCall(fmt.Sprintf("the answer of node %s", to), b, &a)
	}
	return a, err
}

// answerKeys serves methodKeys.
func (d *Daemon) answerKeys(body []byte) ([]byte, error) {
	var c keysCall
	if err := readCall("the keys call", body, &c); err != nil {
		return nil, err
	}
	a, err := d.secrets.do(c)
	if err != nil {
		return nil, err
	}
	if c.Do != keysList {
		id := c.ID
		if c.Do == keysAdd {
			id = membership.SecretID(c.Secret)
		}
		d.report(node.Report{Type: "keys-" + c.Do, Detail: id})
	}
	return json.Marshal(a)
}
