package membership

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kevlard/kevlard"
)

// peersFile is the name of the file of remembered peers in the data dir.
const peersFile = "peers.json"

// remembered is a peer that was alive once: a seed after our own restart, also
// if the whole ring was down (serf's snapshot forgets then).
type remembered struct {
	Name kevlard.NodeID `json:"name"`
	Peer string         `json:"peer"`
	Addr string         `json:"addr"`
	Seen time.Time      `json:"seen"` // last alive, our clock
}

type peersDoc struct {
	Version int          `json:"version"`
	Peers   []remembered `json:"peers"`
}

// decodePeers reads peers.json.
func decodePeers(b []byte, now time.Time) (map[kevlard.NodeID]remembered, error) {
	var doc peersDoc
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, err
	}
	if doc.Version != 1 {
		return nil, fmt.Errorf("version %d, want 1", doc.Version)
	}
	if len(doc.Peers) > maxRemembered {
		doc.Peers = doc.Peers[:maxRemembered]
	}
	peers := make(map[kevlard.NodeID]remembered, len(doc.Peers))
	for i, p := range doc.Peers {
		if err := errors.Join(checkWho(p.Name, p.Peer, "-"), checkAddr(p.Addr)); err != nil {
			return nil, fmt.Errorf("peer %d: %w", i, err)
		}
		if _, err := withPort(p.Addr, 1); err != nil {
			return nil, fmt.Errorf("peer %d: %w", i, err)
		}
		if now.Sub(p.Seen) < rememberFor {
			peers[p.Name] = p
		}
	}
	return peers, nil
}

// loadPeers reads the remembered peers; a missing file is none. On error it
// returns none as well: the file is only a help.
func loadPeers(dir string, now time.Time) (map[kevlard.NodeID]remembered, error) {
	none := map[kevlard.NodeID]remembered{}
	if dir == "" {
		return none, nil
	}
	path := filepath.Join(dir, peersFile)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err != nil {
		return none, fmt.Errorf("open remembered peers: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPeersFile+1))
	if err == nil && len(b) > maxPeersFile {
		err = fmt.Errorf("over %d bytes", maxPeersFile)
	}
	if err != nil {
		return none, fmt.Errorf("read remembered peers %s: %w", path, err)
	}
	peers, err := decodePeers(b, now)
	if err != nil {
		return none, fmt.Errorf("read remembered peers %s: %w; it will be written anew", path, err)
	}
	return peers, nil
}

// savePeers replaces the file so that a crash leaves the old or the new one.
func savePeers(dir string, peers map[kevlard.NodeID]remembered) (err error) {
	doc := peersDoc{Version: 1, Peers: slices.SortedFunc(maps.Values(peers),
		func(a, b remembered) int { return cmp.Compare(a.Name, b.Name) })}
	b, err := json.MarshalIndent(doc, "", " ")
	if err != nil {
		return fmt.Errorf("encode remembered peers: %w", err)
	}
	f, err := os.CreateTemp(dir, peersFile+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("write remembered peers: %w", err)
	}
	renamed := false
	defer func() {
		if !renamed {
			err = errors.Join(fmt.Errorf("write remembered peers: %w", err), os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(append(b, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), filepath.Join(dir, peersFile)); err != nil {
		return err
	}
	renamed = true
	if d, err := os.Open(dir); err == nil {
		// Only the durability of the rename is at stake, and not every filesystem
		// syncs directories.
		_ = d.Sync()
		_ = d.Close()
	}
	return nil
}

// note updates the remembered peers from the view and reports whether the file
// lacks a change of name, peer or address. It is done all the time, and costs next to
// nothing in a ring of a thousand.
func (r *Ring) note(now time.Time) (changed bool) {
	r.peersMu.Lock()
	defer r.peersMu.Unlock()
	changed = r.unsaved
	r.unsaved = false
	r.table.each(func(m *Member) {
		old, known := r.peers[m.Name]
		switch {
		case m.Name == r.cfg.Name:
		case m.State == StateAlive:
			r.peers[m.Name] = remembered{Name: m.Name, Peer: m.Meta.Peer, Addr: m.Addr, Seen: now.UTC()}
			changed = changed || !known || old.Addr != m.Addr || old.Peer != m.Meta.Peer
		case m.State == StateLeft && known && old.Peer == m.Meta.Peer:
			delete(r.peers, m.Name)
			changed = true
		}
	})
	if over := len(r.peers) - maxRemembered; over > 0 {
		old := slices.SortedFunc(maps.Values(r.peers), func(a, b remembered) int { return a.Seen.Compare(b.Seen) })
		for _, p := range old[:over] {
			delete(r.peers, p.Name)
		}
		changed = true
	}
	return changed
}

// noted copies the remembered peers.
func (r *Ring) noted() map[kevlard.NodeID]remembered {
	r.peersMu.Lock()
	defer r.peersMu.Unlock()
	return maps.Clone(r.peers)
}

// Absent returns how many nodes were alive in the last 24 hours, before our own start,
// and are not among Members: we have not met them since, nor learned that they are dead.
func (r *Ring) Absent() int {
	known := map[kevlard.NodeID]bool{}
	for _, m := range r.table.members() {
		known[m.Name] = true
	}
	now, n := time.Now(), 0
	r.peersMu.Lock()
	defer r.peersMu.Unlock()
	for name, p := range r.peers {
		if !known[name] && now.Sub(p.Seen) < tombAge {
			n++
		}
	}
	return n
}

// forget drops a peer that was forced out.
func (r *Ring) forget(name kevlard.NodeID) {
	r.peersMu.Lock()
	defer r.peersMu.Unlock()
	delete(r.peers, name)
	r.unsaved = true
}

// The periods of remember.
const (
	noteEvery = 2 * time.Second
	saveEvery = time.Hour // also without a change, for the dates
)

// remember keeps peers.json and the table's tombs up to date.
func (r *Ring) remember(ctx context.Context) error {
	tick := time.NewTicker(noteEvery)
	defer tick.Stop()
	var saved time.Time
	for done := false; !done; {
		select {
		case <-ctx.Done():
			done = true
		case <-tick.C:
		}
		now := time.Now()
		r.table.sweep(now)
		changed := r.note(now)
		if r.cfg.DataDir == "" || !changed && !done && now.Sub(saved) < saveEvery {
			continue
		}
		if err := savePeers(r.cfg.DataDir, r.noted()); err != nil {
			r.log.once("peers", "the ring's addresses can't be remembered: after a restart of all nodes only the join addresses help", "err", err)
			r.peersMu.Lock()
			r.unsaved = true
			r.peersMu.Unlock()
			continue
		}
		saved = now
	}
	return nil
}
