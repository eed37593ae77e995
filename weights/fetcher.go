package weights

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/model"
	"github.com/kevlard/kevlard/weights/plan"
)

// Config is what a Fetcher is made of.
type Config struct {
	// Self is this node's name.
	Self kevlard.NodeID
	// Library keeps what is fetched.
	Library *Library
	// Nodes lists the nodes that can be asked now, those first that are likely to have
	// the model. It must not block.
	Nodes func(id kevlard.Digest) []kevlard.NodeID
	// Call makes the mesh call "weights" on a node.
	Call func(ctx context.Context, to kevlard.NodeID, request []byte) ([]byte, error)
	// Bandwidth bounds what is fetched, in bytes a second; 0: no bound.
	Bandwidth int64
	// Fetched counts bytes of chunks that came, right or wrong; Rejected is told of each
	// chunk or list that is not what it should be.
	Fetched  func(bytes int)
	Rejected func(from kevlard.NodeID, detail string)
	// Log gets what an admin may want to know. nil: nowhere.
	Log *slog.Logger
	// Timing replaces the times of weights/plan in tests.
	Timing plan.Config
}

// Fetcher fetches models from peers. It takes the pieces that come for it.
type Fetcher struct {
	cfg    Config
	codec  codec
	pace   pacer
	number atomic.Uint64
	slots  chan struct{} // fetchesAtOnce

	mu      sync.Mutex
	awaited map[uint64]*delivery
	models  map[kevlard.Digest]chan struct{} // capacity 1: one fetch of a model at a time
	active  map[*job]bool
}

// delivery is a chunk that was asked for.
type delivery struct {
	from kevlard.NodeID
	size int
	came chan []byte // capacity 1
}

// NewFetcher returns a fetcher.
func NewFetcher(cfg Config) *Fetcher {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	f := &Fetcher{
		cfg: cfg, codec: newCodec(), pace: pacer{rate: cfg.Bandwidth}, slots: make(chan struct{}, fetchesAtOnce),
		awaited: map[uint64]*delivery{}, models: map[kevlard.Digest]chan struct{}{}, active: map[*job]bool{},
	}
	var first [8]byte
	rand.Read(first[:]) // crypto/rand ends the process if it cannot
	f.number.Store(binary.BigEndian.Uint64(first[:]))
	return f
}

// Buffer is mover.Handler's, for pieces of which IsPiece is true.
func (f *Fetcher) Buffer(from kevlard.NodeID, header []byte, n int) []byte {
	if d := f.find(from, header); d == nil || d.size != n {
		return nil // of a request that was given up
	}
	return make([]byte, n)
}

// Received is mover.Handler's.
func (f *Fetcher) Received(from kevlard.NodeID, header, body []byte) {
	if d := f.find(from, header); d != nil && d.size == len(body) {
		select {
		case d.came <- body:
		default: // it came twice
		}
	}
}

func (f *Fetcher) find(from kevlard.NodeID, header []byte) *delivery {
	number, ok := pieceNumber(header)
	if !ok {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := f.awaited[number]; d != nil && d.from == from {
		return d
	}
	return nil
}

// Fetch makes sure that all units of a stage are on this disk, and returns the path for
// model.Load: what is missing comes from peers. With layers that are empty only the
// header comes, which is all that a gateway needs. progress (nil: none) is called now and
// then, and at the end, by one goroutine at a time.
//
// What was verified stays, whatever happens. Chunks stay when ctx ends or holders are
// lost: the next Fetch, also after a crash, goes on from there. When the disk is full
// their room is given back.
func (f *Fetcher) Fetch(ctx context.Context, id kevlard.Digest, layers kevlard.Layers, progress func(Progress)) (string, error) {
	if m, ok := f.cfg.Library.Find(id, layers); ok {
		return m.Path, nil
	}
	j := newJob(f, id, layers, progress)
	f.mu.Lock()
	f.active[j] = true
	f.mu.Unlock()
	path, err := j.inTurn(ctx)
	f.mu.Lock()
	delete(f.active, j)
	f.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("fetch layers %v of model %s: %w", layers, id.Short(), err)
	}
	j.progress.finish(err)
	return path, err
}

// inTurn fetches when it is the job's turn. That comes: each fetch before it moves or fails.
func (j *job) inTurn(ctx context.Context) (path string, err error) {
	unlock, err := j.lock(ctx, j.id, func() { j.progress.waits("other fetches come first") })
	if err != nil {
		return "", err
	}
	defer unlock()
	j.progress.waits("")
	if m, ok := j.cfg.Library.Find(j.id, j.layers); ok { // by the fetch before
		return m.Path, nil
	}
	return j.fetch(ctx)
}

// lock waits for the turn of a fetch. It calls waits first if that has not come.
func (f *Fetcher) lock(ctx context.Context, id kevlard.Digest, waits func()) (unlock func(), err error) {
	f.mu.Lock()
	one := f.models[id]
	if one == nil {
		one = make(chan struct{}, 1)
		f.models[id] = one // as many as models are fetched in a life
	}
	f.mu.Unlock()
	if err := enter(ctx, one, waits); err != nil {
		return nil, err
	}
	if err := enter(ctx, f.slots, waits); err != nil {
		<-one
		return nil, err
	}
	return func() { <-f.slots; <-one }, nil
}

// enter takes a place of a semaphore, and calls waits first if there is none.
func enter(ctx context.Context, places chan struct{}, waits func()) error {
	select {
	case places <- struct{}{}:
		return nil
	default:
	}
	waits()
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Active is how far the fetches are that run now.
func (f *Fetcher) Active() []Progress {
	f.mu.Lock()
	jobs := make([]*job, 0, len(f.active))
	for j := range f.active {
		jobs = append(jobs, j)
	}
	f.mu.Unlock()
	out := make([]Progress, 0, len(jobs))
	for _, j := range jobs {
		out = append(out, j.progress.get())
	}
	slices.SortFunc(out, func(a, b Progress) int { return slices.Compare(a.Model[:], b.Model[:]) })
	return out
}

// job is one fetch.
type job struct {
	*Fetcher
	id       kevlard.Digest
	layers   kevlard.Layers
	store    *store
	progress *meter

	descriptions map[kevlard.NodeID]Description // of nodes that have something of the model
	distrusted   map[kevlard.NodeID]string      // why
}

func newJob(f *Fetcher, id kevlard.Digest, layers kevlard.Layers, progress func(Progress)) *job {
	return &job{
		Fetcher: f, id: id, layers: layers, progress: newMeter(id, layers, progress),
		descriptions: map[kevlard.NodeID]Description{}, distrusted: map[kevlard.NodeID]string{},
	}
}

// fetch is Fetch for one who has the lock.
func (j *job) fetch(ctx context.Context) (path string, err error) {
	if j.store, err = j.cfg.Library.store(ctx, j.id); err != nil {
		return "", err
	}
	defer j.store.close()
	defer func() {
		if len(j.store.index.Units) == 0 {
			_ = os.Remove(j.store.dir) // if nothing came
		}
	}()
	defer func() {
		if full(err) {
			err = fmt.Errorf("%w: %w: make room, or set [node] data_dir to a larger disk, and fetch again; what was verified is kept", errFull, err)
		}
		if errors.Is(err, errFull) {
			err = errors.Join(err, j.store.discard())
		}
	}()
	for len(j.store.index.Units) == 0 {
		if err := j.start(ctx); err != nil {
			return "", err
		}
	}
	m, err := model.Load(j.store.dir, "")
	if err != nil {
		return "", err
	}
	var items []item
	var need int64
	for _, u := range m.StageUnits(j.layers) {
		if !slices.Contains(m.Absent, u.Name) || slices.ContainsFunc(items, func(i item) bool { return i.digest == u.Digest }) {
			continue
		}
		items = append(items, item{name: u.Name, digest: u.Digest, bytes: u.Bytes})
		need += max(0, u.Bytes-allocated(j.store.partPath(u.Digest)))
	}
	if j.layers.Len() > 0 && len(m.StageUnits(j.layers)) == 0 {
		return "", fmt.Errorf("%s has layers [0,%d)", m.Name, m.Layers)
	}
	j.progress.units(m, j.layers)
	if err := j.store.room(need); err != nil {
		return "", err
	}
	if len(items) == 0 {
		return j.store.dir, nil
	}
	return j.store.dir, j.run(ctx, items)
}

// start fetches the header, and with it what units there are. Afterwards either the index
// lists them or another holder's header is to be tried.
func (j *job) start(ctx context.Context) error {
	if err := j.find(ctx); err != nil {
		return err
	}
	d, nodes := j.elect()
	if err := j.run(ctx, []item{{name: "header", digest: d.Header, bytes: d.HeaderBytes, header: true}}); err != nil {
		return err
	}
	h, err := os.Open(model.HeaderPath(j.store.dir))
	if err != nil {
		return err
	}
	defer h.Close()
	_, m, err := model.ParseHeader(h, d.Name)
	if err == nil {
		var id kevlard.Digest
		if id, err = m.Identify(d.Units); err == nil && id != j.id {
			err = fmt.Errorf("what it describes is model %s", id.Short())
		}
	}
	if err == nil {
		return j.store.begin(printableName(d.Name, j.id), m)
	}
	for _, n := range nodes {
		j.distrust(n, fmt.Sprintf("its description of model %s is wrong: %v", j.id.Short(), err))
	}
	return j.store.discardHeader()
}

// elect returns the description that most nodes gave, and which did.
func (j *job) elect() (Description, []kevlard.NodeID) {
	groups := map[kevlard.Digest][]kevlard.NodeID{}
	var best kevlard.Digest
	for _, n := range j.described() {
		d := j.descriptions[n]
		key := d.key()
		groups[key] = append(groups[key], n)
	}
	for _, n := range j.described() { // of equal groups, that of the first node
		d := j.descriptions[n]
		if key := d.key(); len(groups[key]) > len(groups[best]) {
			best = key
		}
	}
	nodes := groups[best]
	if len(groups) > 1 {
		j.cfg.Log.Warn("nodes describe a model differently: its header, with the tokenizer, is that of most of them",
			"model", j.id.Short(), "descriptions", len(groups), "nodes", nodes)
	}
	return j.descriptions[nodes[0]], nodes
}

// described lists the nodes that have something, and are believed, by name.
func (j *job) described() []kevlard.NodeID {
	var out []kevlard.NodeID
	for n := range j.descriptions {
		if _, no := j.distrusted[n]; !no {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// find asks until a node describes the model, for as long as a unit may have no holder.
func (j *job) find(ctx context.Context) error {
	wait := j.cfg.Timing.NoHolder
	if wait == 0 {
		wait = 5 * time.Second
	}
	limit := time.NewTimer(wait)
	defer limit.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		j.describeAll(ctx, j.cfg.Nodes(j.id))
		if len(j.described()) > 0 {
			return nil
		}
		select {
		case <-look.C:
		case <-limit.C:
			return j.nobody("no node that this one reaches has it")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ErrNoHolder says that units are missing that nobody in reach has.
var ErrNoHolder = errors.New("nobody has it")

// nobody is the error of what no node has.
func (j *job) nobody(what string) error {
	err := fmt.Errorf("%w: %s: start a node that has the model, or copy its file to [models] dirs", ErrNoHolder, what)
	for _, n := range slices.Sorted(maps.Keys(j.distrusted)) {
		err = fmt.Errorf("%w; node %s is not asked any more: %s", err, n, j.distrusted[n])
	}
	return err
}

// distrust drops a node for this fetch, by name.
func (j *job) distrust(n kevlard.NodeID, why string) {
	j.distrusted[n] = why
	j.progress.dropped(n, why)
	j.cfg.Rejected(n, why)
	j.cfg.Log.Warn("a node is not asked for weights any more in this fetch", "peer", n, "model", j.id.Short(), "why", why)
}

// describeAll asks nodes what they have, and waits for them.
func (j *job) describeAll(ctx context.Context, nodes []kevlard.NodeID) {
	var all sync.WaitGroup
	var mu sync.Mutex
	slots := make(chan struct{}, describeAtOnce)
	for _, n := range nodes[:min(len(nodes), maxAsked)] {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			d, ok := j.describe(ctx, n, j.id)
			mu.Lock()
			defer mu.Unlock()
			if ok {
				j.descriptions[n] = d
			}
		})
	}
	all.Wait()
}

// describe asks one node.
func (f *Fetcher) describe(ctx context.Context, n kevlard.NodeID, id kevlard.Digest) (Description, bool) {
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	a, err := f.ask(ctx, n, Request{Kind: Describe, Model: id})
	if err != nil {
		return Description{}, false
	}
	return *a.Description, true
}

// ask makes a call. A refusal is an error.
func (f *Fetcher) ask(ctx context.Context, n kevlard.NodeID, r Request) (Answer, error) {
	r.Version = Version
	b, err := f.cfg.Call(ctx, n, f.codec.encode(r))
	if err != nil {
		return Answer{}, err
	}
	a, err := f.codec.answer(r.Kind, b)
	if err == nil && a.Refusal != "" {
		return a, &refused{a.Refusal, a.Text}
	}
	return a, err
}
