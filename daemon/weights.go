package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/kvstream/mover"
	"github.com/kevlard/kevlard/node"
	"github.com/kevlard/kevlard/topology"
	"github.com/kevlard/kevlard/weights"
)

// methodWeights is the mesh call for weights; see package weights.
const methodWeights = "weights"

// weightsLane is where chunks of weights leave: on one of the connections to a peer, so
// that most KV has none before it.
const weightsLane mover.Lane = 0

// carrier is the weights on this node's disk, given to others and fetched from them.
type carrier struct {
	library *weights.Library
	server  *weights.Server
	fetcher *weights.Fetcher
	// describe is Deps.Fetched.
	describe func(ctx context.Context, path string) (LocalModel, error)
}

// bindWeights follows bindCopies: chunks leave through the same mover.
func (d *Daemon) bindWeights(deps Deps) {
	w := &d.weights
	w.library = deps.Library
	if w.describe = deps.Fetched; w.describe != nil {
		d.engines.fetch = d.fetchStage
	}
	var send weights.SendFunc
	if m := d.copies.mover; m != nil {
		send = func(ctx context.Context, to kevlard.NodeID, header, body []byte) error {
			return m.Send(ctx, to, weightsLane, header, body)
		}
	}
	count := func(direction string) func(int) {
		c := d.metrics.weights.WithLabelValues(direction)
		return func(n int) { c.Add(float64(n)) }
	}
	w.server = weights.NewServer(d.cfg.Name, w.library, send, d.cfg.WeightsBandwidth, count("sent"))
	w.fetcher = weights.NewFetcher(weights.Config{
		Self: d.cfg.Name, Library: w.library, Bandwidth: d.cfg.WeightsBandwidth, Log: d.log, Fetched: count("fetched"),
		Nodes: d.weightNodes,
		Call: func(ctx context.Context, to kevlard.NodeID, request []byte) ([]byte, error) {
			return d.mesh.Call(ctx, to, methodWeights, request)
		},
		Rejected: func(from kevlard.NodeID, detail string) {
			d.metrics.weightsRejected.Inc()
			if d.seldom.allow("weights " + string(from)) {
				d.report(node.Report{Type: "weights-rejected", Node: from, Detail: detail})
			}
		},
	})
}

// newLibrary is the default of Deps.Library.
func newLibrary(cfg Config, deps Deps) *weights.Library {
	if cfg.DataDir == "" {
		return weights.NewLibrary("", deps.Log)
	}
	l := weights.NewLibrary(filepath.Join(cfg.DataDir, "models"), deps.Log)
	l.Scan(context.Background()) // it reads no more than what a crash left
	return l
}

// weightNodes lists the nodes that the mesh reaches, those with stages of the model first.
func (d *Daemon) weightNodes(id kevlard.Digest) []kevlard.NodeID {
	view := d.snapshot().view
	var likely, others []kevlard.NodeID
	for _, p := range d.mesh.Peers() {
		n, _ := view.Node(p.Peer.Node)
		switch {
		case !p.Connected:
		case slices.ContainsFunc(n.Models, func(m topology.Model) bool { return m.ID == id }):
			likely = append(likely, p.Peer.Node)
		default:
			others = append(others, p.Peer.Node)
		}
	}
	return append(likely, others...)
}

// FetchWeights makes sure that the weights of a stage are on this node's disk, from peers
// if need be, and returns where: what model.Load takes. progress (nil: none) is called now
// and then, by one goroutine. What came stays when ctx ends, and is not fetched again. The
// error wraps weights.ErrNoHolder where nobody in reach has the units that it names.
func (d *Daemon) FetchWeights(ctx context.Context, id kevlard.Digest, layers kevlard.Layers, progress func(report.Fetch)) (path string, err error) {
	if d.copies.mover == nil {
		if m, ok := d.weights.library.Find(id, layers); ok {
			return m.Path, nil
		}
		return "", errors.New("fetch weights: this node has no bulk address: set [mesh] bulk_port")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-d.ended:
			cancel(errStopped)
		case <-ctx.Done():
		}
	})
	defer watch.Wait()
	defer cancel(nil)
	fetched := false
	path, err = d.weights.fetcher.Fetch(ctx, id, layers, func(p weights.Progress) {
		fetched = fetched || p.Fetched > 0
		if progress != nil {
			progress(describeFetch(p))
		}
	})
	stage := fmt.Sprintf("layers %v of model %s", layers, id.Short())
	switch {
	case err != nil && ctx.Err() == nil:
		d.report(node.Report{Type: "weights-failed", Detail: err.Error()})
	case err == nil && fetched && layers.Len() > 0:
		d.report(node.Report{Type: "weights-fetched", Detail: stage + " are in " + path})
	}
	return path, err
}

// fetchStage fetches what a stage needs that the plan gave to this node.
func (d *Daemon) fetchStage(ctx context.Context, key kevlard.StageKey, progress func(permille int, waits bool)) (AssignedStage, error) {
	path, err := d.FetchWeights(ctx, key.Model, key.Layers, func(f report.Fetch) { progress(int(f.Bytes*1000/max(f.Total, 1)), f.Waits != "") })
	if err != nil {
		return AssignedStage{}, err
	}
	l, err := d.weights.describe(ctx, path)
	if err == nil {
		err = l.check()
	}
	if err == nil && l.Model.ID != key.Model {
		err = fmt.Errorf("%s is model %s, want %s: remove it", path, l.Model.ID.Short(), key.Model.Short())
	}
	return l.stage(key.Layers), err
}

// Fetches lists the fetches of weights that run now.
func (d *Daemon) Fetches() []report.Fetch {
	out := []report.Fetch{}
	for _, p := range d.weights.fetcher.Active() {
		out = append(out, describeFetch(p))
	}
	return out
}

// FindModel finds a model of the ring by its ID or name.
func (d *Daemon) FindModel(name string) (kevlard.Digest, error) {
	if id, err := kevlard.ParseDigest(name); err == nil {
		return id, nil
	}
	var found []topology.Model
	var names []string
	for _, m := range d.Models() {
		if m.Name == name {
			found = append(found, m)
		}
		names = append(names, m.Name)
	}
	switch len(found) {
	case 1:
		return found[0].ID, nil
	case 0:
		return kevlard.Digest{}, &kevlard.Failure{Code: "model_not_found", Status: 404, Message: fmt.Sprintf("no node of the ring has stages of a model %q, but of %q: name one of these, or the ID of a model that is only on disk (kevlard model ls shows it there)", name, names)}
	}
	return kevlard.Digest{}, &kevlard.Failure{Code: "model_not_found", Status: 404, Message: fmt.Sprintf("%d models are called %q: name one by its ID, %s or %s", len(found), name, found[0].ID, found[1].ID)}
}

// describeFetch makes progress a document.
func describeFetch(p weights.Progress) report.Fetch {
	r := report.Fetch{
		Model: p.Model.String(), Name: p.Name, Lo: p.Layers.Lo, Hi: p.Layers.Hi, Bytes: p.Done, Total: p.Total, Fetched: p.Fetched, Waits: p.Waits,
		Units: []report.FetchUnit{}, Holders: []report.FetchHolder{},
	}
	for _, u := range p.Units {
		r.Units = append(r.Units, report.FetchUnit{Name: u.Name, Bytes: u.Done, Total: u.Bytes, Verified: u.Verified})
	}
	for _, h := range p.Holders {
		r.Holders = append(r.Holders, report.FetchHolder{Node: string(h.Node), Bytes: h.Bytes, Wrong: h.Wrong, Dropped: h.Dropped})
	}
	return r
}

// sorter hands bulk pieces to whom they are for. It is the mover's handler.
type sorter struct {
	keeper  *keeper
	weights *carrier
}

// Buffer implements mover.Handler.
func (s sorter) Buffer(from kevlard.NodeID, header []byte, n int) []byte {
	if weights.IsPiece(header) {
		return s.weights.fetcher.Buffer(from, header, n)
	}
	return s.keeper.Buffer(from, header, n)
}

// Received implements mover.Handler.
func (s sorter) Received(from kevlard.NodeID, header, body []byte) {
	if weights.IsPiece(header) {
		s.weights.fetcher.Received(from, header, body)
		return
	}
	s.keeper.Received(from, header, body)
}

// Aborted implements mover.Handler. A chunk's buffer is nobody's then.
func (s sorter) Aborted(from kevlard.NodeID, header, body []byte) {
	if !weights.IsPiece(header) {
		s.keeper.Aborted(from, header, body)
	}
}

// Lost implements mover.Handler. Chunks that were lost are asked for again.
func (s sorter) Lost(to kevlard.NodeID, err error) { s.keeper.Lost(to, err) }
