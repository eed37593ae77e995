package e2e

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// prefixes says how much TestConversationsComputeOnlyWhatIsNew does.
type prefixes struct {
	conversations, turns, atOnce int
	opening, said, answer        int     // tokens of the first prompt, of what each turn adds, and of each answer
	users, system                int     // with one system prompt of so many tokens
	share                        float64 // of the reusable positions that must be reused
}

// entries returns a client of each daemon, gateways too.
func (m *mesh) entries(t *testing.T) []*load.Client {
	t.Helper()
	var out []*load.Client
	for _, n := range m.All() {
		c := load.NewClient(n.APIURL())
		t.Cleanup(c.CloseIdle)
		out = append(out, c)
	}
	return out
}

// words returns n ordinary tokens of the bundled model that depend on key.
func words(key, n int) []int32 {
	const ordinary = 2000
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((key*7919 + i*i*31 + i*key*13 + i*17) % ordinary)
	}
	return out
}

// inParallel does n things, so many at a time.
func inParallel(n, atOnce int, do func(i int)) {
	var all sync.WaitGroup
	next := make(chan int)
	for range atOnce {
		all.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
}

// turn is one request of a conversation and what came of it.
type turn struct {
	prompt, answer []int32
	cached         int
	ttft           time.Duration
}

// converse plays one conversation: each turn goes to the next daemon.
func converse(t *testing.T, m *mesh, at []*load.Client, key int, p prefixes) []turn {
	prompt := words(key, p.opening)
	var out []turn
	for i := range p.turns {
		r := at[(key+i)%len(at)].Stream(t.Context(), load.Request{Model: m.ModelName(), PromptIDs: prompt, MaxTokens: p.answer, IgnoreEOS: true}, nil)
		if r.Err != nil {
			t.Errorf("turn %d of conversation %d: %v", i+1, key, r.Err)
			return out
		}
		out = append(out, turn{slices.Clone(prompt), r.IDs(), r.Cached, r.FirstToken()})
		prompt = slices.Concat(prompt, r.IDs(), words(1000*key+i, p.said))
	}
	return out
}

// TestConversationsComputeOnlyWhatIsNew (K61) sends the turns of conversations to the daemons in
// turn: what an earlier turn computed, prompt and answer but for its last token, is found
// by the next, wherever it is. Answers are those of a mesh that had nothing to find. Users
// with one system prompt compute it once for each pipeline.
func TestConversationsComputeOnlyWhatIsNew(t *testing.T) {
	p := prefixes{conversations: 8, turns: 3, atOnce: 2, opening: 90, said: 23, answer: 11, users: 8, system: 256, share: 0.9}
	o := devmesh.Options{Nodes: 4, Stages: 2}
	if long() {
		p = prefixes{conversations: 200, turns: 5, atOnce: 6, opening: 150, said: 37, answer: 29, users: 50, system: 512, share: 0.98}
		o = devmesh.Options{Nodes: 8, Stages: 4, Gateways: 1}
	}
	m := start(t, o)
	at := m.entries(t)
	all := make([][]turn, p.conversations)
	var fresh []time.Duration
	var mu sync.Mutex
	inParallel(p.conversations, p.atOnce, func(i int) {
		all[i] = converse(t, m, at, i+1, p)
		if len(all[i]) < p.turns {
			return
		}
		for k, x := range all[i][1:] { // as long, and nobody has any of it
			other := slices.Clone(x.prompt)
			other[0], other[1] = int32(2000+i%48), int32((7*i+k)%2000)
			r := at[(i+k)%len(at)].Stream(t.Context(), load.Request{Model: m.ModelName(), PromptIDs: other, MaxTokens: p.answer, IgnoreEOS: true}, nil)
			if r.Err != nil {
				t.Errorf("a prompt like turn %d of conversation %d: %v", k+2, i+1, r.Err)
			} else if r.Cached > 1 {
				t.Errorf("a prompt like turn %d of conversation %d: %d tokens are cached, and nobody had it", k+2, i+1, r.Cached)
			}
			mu.Lock()
			fresh = append(fresh, r.FirstToken())
			mu.Unlock()
		}
	})
	if t.Failed() {
		return
	}
	reusable, reused := 0, 0
	var later []time.Duration
	for _, c := range all {
		for i, x := range c[1:] {
			had := len(c[i].prompt) + len(c[i].answer) - 1
			reusable, reused = reusable+had, reused+min(x.cached, had)
			later = append(later, x.ttft)
		}
	}
	share := float64(reused) / float64(reusable)
	slices.Sort(later)
	slices.Sort(fresh)
	t.Logf("%d conversations of %d turns: %d of %d reusable positions reused, %.2f %%; TTFT of turns 2 and later p50 %v, p99 %v; of as many like them without reuse p50 %v, p99 %v",
		p.conversations, p.turns, reused, reusable, 100*share, later[len(later)/2], later[len(later)*99/100], fresh[len(fresh)/2], fresh[len(fresh)*99/100])
	if share < p.share {
		t.Errorf("%.3f of the reusable positions were reused, want %v", share, p.share)
	}
	if found := m.sum(t, "kevlard_prefix_reused_tokens_total"); int(found) < reused {
		t.Errorf("the daemons count %v reused tokens, the clients %d", found, reused)
	}
	m.oneSystemPrompt(t, at, p)

	// The same last turns where nothing is to be found.
	q := start(t, devmesh.Options{Nodes: 1, Stages: 1})
	inParallel(min(len(all), 20), 1, func(i int) {
		last := all[i][p.turns-1]
		r := q.client.Stream(t.Context(), load.Request{Model: q.ModelName(), PromptIDs: last.prompt, MaxTokens: p.answer, IgnoreEOS: true}, nil)
		switch {
		case r.Err != nil:
			t.Errorf("conversation %d without reuse: %v", i+1, r.Err)
		case r.Cached > 1:
			t.Errorf("conversation %d: %d tokens are cached where nothing ran before", i+1, r.Cached)
		case !slices.Equal(r.IDs(), last.answer):
			t.Errorf("conversation %d: %v with reuse, %v without", i+1, last.answer, r.IDs())
		}
	})
}

// oneSystemPrompt sends users that begin alike, all at once.
func (m *mesh) oneSystemPrompt(t *testing.T, at []*load.Client, p prefixes) {
	t.Helper()
	const own = 9
	computed := make([]int, p.users)
	inParallel(p.users, p.users, func(i int) {
		prompt := append(words(424242, p.system), words(7000+i, own)...)
		r := at[i%len(at)].Stream(t.Context(), load.Request{Model: m.ModelName(), PromptIDs: prompt, MaxTokens: 4, IgnoreEOS: true}, nil)
		if r.Err != nil {
			t.Errorf("user %d: %v", i, r.Err)
		}
		computed[i] = len(prompt) - r.Cached
	})
	again := 0 // users that computed most of the system prompt
	for _, n := range computed {
		if n > p.system/2 {
			again++
		}
	}
	t.Logf("%d users with one system prompt of %d tokens at once: %d computed it; they computed %v", p.users, p.system, again, computed)
	const pipelines = 2
	if long() && again > pipelines {
		t.Errorf("%d users computed the system prompt, want at most one for each of %d pipelines", again, pipelines)
	}
}
