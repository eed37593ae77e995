package node

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard"
	"github.com/kevlard/kevlard/node/audit"
	"github.com/kevlard/kevlard/protocol"
	"github.com/kevlard/kevlard/topology"
)

// dispute makes the view say that one holder disputes others.
func (r *rig) dispute(by kevlard.NodeID, about ...kevlard.NodeID) {
	s := r.node(by).Stages
	s[0].Disputes = append(s[0].Disputes, about...)
	r.see()
}

// confirm is the same for agreement.
func (r *rig) confirm(by kevlard.NodeID, about ...kevlard.NodeID) {
	s := r.node(by).Stages
	s[0].Agrees = append(s[0].Agrees, about...)
	r.see()
}

// joins adds a node that is written as for newRig.
func (r *rig) joins(peer string) {
	n := *newRig(r.T, nil, peer).node(kevlard.NodeID(peer[:2]))
	r.view.Nodes = append(r.view.Nodes, n)
	slices.SortFunc(r.view.Nodes, func(a, b topology.Node) int { return cmp.Compare(a.ID, b.ID) })
	r.see()
	r.step(PeerUp{Node: n.ID, Boot: n.Boot})
}

// begun submits a session and prepares it; n1 is the first stage. found is how much of
// the prompt the stages say they hold.
func (r *rig) begun(id kevlard.SessionID, found int) (to []kevlard.NodeID, p protocol.Prepare) {
	r.submit(id, 1, 2, 3, 4)
	to, p = prepares(r.out, id)
	for _, n := range to {
		lo := 0
		if n == "n9" {
			lo = 1
		}
		r.say(n, protocol.Prepared{Session: id, Fence: p.Fence, Lo: lo, Have: found})
	}
	return to, p
}

func failure(t *testing.T, es []Effect, id kevlard.SessionID) *kevlard.Failure {
	t.Helper()
	for _, f := range effectsOf[Finish](es) {
		if f.Session == id {
			return f.Err
		}
	}
	return nil
}

func TestDistrustEndsWhatRanThere(t *testing.T) {
	r := newRig(t, nil, "n1:0-1", "n9:1-2")
	r.begun("through", 0)
	r.begun("found", 2)
	// Two honest holders come, and find that n1 lies.
	r.joins("n2:0-1")
	r.joins("n3:0-1")
	r.confirm("n2", "n3")
	r.confirm("n3", "n2")
	r.dispute("n2", "n1")
	if len(reports(r.out, "distrusted")) != 0 {
		t.Error("n3 was not waited for")
	}
	r.dispute("n3", "n1")
	if d := reports(r.out, "distrusted"); len(d) != 1 || d[0].Node != "n1" || !strings.Contains(d[0].Detail, model.ID.String()) {
		t.Errorf("reports %+v", d)
	}
	for _, id := range []kevlard.SessionID{"through", "found"} {
		if f := failure(t, r.out, id); f == nil || f.Code != "disputed" || f.Status != 500 {
			t.Errorf("session %s: %v", id, f)
		}
	}
	to, p := r.begun("later", 0)
	if len(to) != 2 || to[0] == "n1" || p.Salt == "" {
		t.Errorf("a later session prepares %v with salt %q", to, p.Salt)
	}
	r.dispute("n1", "n2", "n3") // the liar's own word
	if len(reports(r.out, "distrusted")) != 0 || failure(t, r.out, "later") != nil {
		t.Errorf("one liar bans two that confirm each other: %+v", r.out)
	}
}

// TestFoundKVIsTainted: a session that never ran at the liar, but began with KV that was
// found, ends too; one that computed all goes on.
func TestFoundKVIsTainted(t *testing.T) {
	r := newRig(t, nil, "n1:0-1", "n9:1-2")
	r.begun("found", 2)
	r.begun("computed", 0)
	r.joins("n2:0-1")
	r.dispute("n1", "n2")
	if f := failure(t, r.out, "found"); f == nil || f.Code != "disputed" {
		t.Errorf("found: %v", f)
	}
	if f := failure(t, r.out, "computed"); f != nil {
		t.Errorf("computed: %v", f)
	}
	_, p := r.begun("again", 2) // what it finds has the new salt
	r.see()
	if f := failure(t, r.out, "again"); f != nil || p.Salt == "" {
		t.Errorf("a later session that finds KV: %v, salt %q", f, p.Salt)
	}
}

// TestFoundWhilePreparing: a session whose stages are being asked what they hold, under the
// old salt, does not begin with it. It asks again under the new one.
func TestFoundWhilePreparing(t *testing.T) {
	r := newRig(t, nil, "n1:0-1", "n9:1-2")
	r.submit("s", 1, 2, 3, 4)
	to, old := prepares(r.out, "s")
	r.joins("n2:0-1")
	r.dispute("n1", "n2")
	if f := failure(t, r.out, "s"); f != nil {
		t.Fatalf("it ends with %v", f)
	}
	all := r.out
	for i, n := range to {
		r.say(n, protocol.Prepared{Session: "s", Fence: old.Fence, Lo: i, Have: 2})
		all = append(all, r.out...)
	}
	all = append(all, r.sleep(time.Second, "n1", "n2", "n9")...)
	if f := effectsOf[SendFrame](all); len(f) != 0 {
		t.Errorf("it begins with what was found: %+v", f)
	}
	if _, p := prepares(all, "s"); p.Salt == old.Salt || p.Fence.Compare(old.Fence) <= 0 {
		t.Errorf("it asks again with %v, salt %q", p.Fence, p.Salt)
	}
}

// TestPausedSessionsAreTainted: a session that ran at the liar can't be gone on with.
func TestPausedSessionsAreTainted(t *testing.T) {
	r := newRig(t, nil, "n1:0-1", "n9:1-2")
	r.step(Submit{Session: "s", Client: 1, Request: Request{Model: model.ID, Prompt: []kevlard.Token{1, 2}, MaxTokens: 50, Envelope: []byte("e")}})
	r.accept()
	r.step(Pause{Session: "s", Client: 1})
	r.joins("n2:0-1")
	r.dispute("n2", "n1")
	r.step(Resume{Session: "s", Client: 2})
	if f := failure(t, r.out, "s"); f == nil || f.Code != "disputed" {
		t.Errorf("resumed: %v", f)
	}
}

// TestTakenOverIsTainted: of a session that this node took over nobody here knows where it
// ran before its record was made, or after. It is not gone on with when a node of its model
// is not believed any more; nor is its answer shown that is complete, but for that of one
// that began when its owner knew.
func TestTakenOverIsTainted(t *testing.T) {
	eog := kevlard.Token(2)
	for name, c := range map[string]struct {
		log   []kevlard.Token
		late  bool // n1 is found after the takeover, else before
		knows bool // the session began when n1 was known of
		says  string
	}{
		"it goes on":                      {[]kevlard.Token{7}, true, false, "disputed"},
		"it goes on, n1 was known":        {[]kevlard.Token{7}, false, false, "disputed"},
		"it is complete":                  {[]kevlard.Token{7, eog}, true, false, "disputed"},
		"it is complete, n1 was known":    {[]kevlard.Token{7, eog}, false, false, "disputed"},
		"it began when n1 was known":      {[]kevlard.Token{7}, false, true, ""},
		"it is complete, and began so":    {[]kevlard.Token{7, eog}, false, true, ""},
		"nothing was generated, or shown": {nil, false, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil, "n1:0-2", "n2:0-2", "n3:0-2", "n4")
			found := func() {
				r.confirm("n2", "n3")
				r.confirm("n3", "n2")
				r.dispute("n2", "n1")
				r.dispute("n3", "n1")
			}
			if !c.late {
				found()
			}
			r.step(TakeOver{Session: "s", Accepted: true})
			w := protocol.Witnesses{Version: 1, Now: []protocol.Life{{Node: "n4", Boot: "n4.1"}, {Node: "n2", Boot: "n2.1"}, {Node: "n3", Boot: "n3.1"}}}
			rec := protocol.Record{
				Session: "s", Epoch: 1, Owner: protocol.Life{Node: "n9", Boot: "n9.1"}, Witnesses: w, Model: model.ID, Prompt: []kevlard.Token{1, 2},
				MaxTokens: 5, EOG: []kevlard.Token{eog}, Class: "c", Envelope: []byte("e"), Route: kevlard.Route{{Node: "n2", Layers: kevlard.Layers{Hi: 2}}}, Tokens: c.log,
			}
			if c.knows {
				rec.Salt = r.m.salted("")
			}
			r.say("n4", protocol.Located{Session: "s", Recorded: true, Epoch: 1, At: 1, Owner: rec.Owner, Witnesses: w})
			r.say("n4", protocol.Promise{Session: "s", Epoch: 2, Record: &rec})
			r.say("n3", protocol.Promise{Session: "s", Epoch: 2, Record: &rec})
			if got := effectsOf[TakenOver](r.out); len(got) != 1 || got[0].Err != nil {
				t.Fatalf("taken over %+v", got)
			}
			if c.late {
				found()
			}
			r.step(Resume{Session: "s"})
			code := ""
			if f := failure(t, r.out, "s"); f != nil {
				code = f.Code
			}
			if code != c.says || code != "" && len(effectsOf[Emit](r.out))+len(effectsOf[Replay](r.out)) != 0 {
				t.Errorf("it says %q, want %q: %+v", code, c.says, r.out)
			}
		})
	}
}

// TestTakenOverByWhoKnowsLess: an owner that was started anew knows nothing of a liar any more,
// and may use it. What it computes for a session whose last owner knew is filed under a name
// of its own.
func TestTakenOverByWhoKnowsLess(t *testing.T) {
	r := newRig(t, nil, "n1:0-2", "n2", "n3")
	const salt = "tenant~0123456789abcdef"
	r.takesOver(protocol.Record{Prompt: []kevlard.Token{1, 2}, MaxTokens: 5, Salt: salt, Tokens: []kevlard.Token{7}})
	r.step(Resume{Session: "s"})
	to, asked := prepares(r.out, "s")
	if len(to) == 0 || asked.Salt == salt || asked.Salt == "tenant" || audit.Suffix(asked.Salt) != "" {
		t.Errorf("prepared at %v under the salt %q", to, asked.Salt)
	}
}

// TestNoRouteSaysWhy: where all holders of some layers dispute each other, none is used,
// however long a session waits.
func TestNoRouteSaysWhy(t *testing.T) {
	r := newRig(t, nil, "n1:0-1", "n2:0-1", "n9:1-2")
	r.dispute("n1", "n2")
	r.dispute("n2", "n1")
	r.submit("s", 1, 2, 3)
	all := append(r.out, r.sleep(time.Minute, "n1", "n2", "n9")...)
	if to, _ := prepares(all, "s"); len(to) != 0 {
		t.Errorf("prepared at %v", to)
	}
	f := failure(t, all, "s")
	if f == nil || f.Code != "no_route" || !strings.Contains(f.Message, "node n1 is not used") || !strings.Contains(f.Message, "nor 1 more") {
		t.Errorf("failure %v", f)
	}
}

// TestDistrustedCopies: nobody keeps copies for a node that is not believed.
func TestDistrustedCopies(t *testing.T) {
	r := newRig(t, []kevlard.Layers{{Lo: 0, Hi: 1}}, "n1:0-1", "n2:0-1", "n9:1-2")
	offer := protocol.Offer{
		Session: "s", Fence: kevlard.Fence{Epoch: 1, Term: 1}, Owner: "n9", OwnerBoot: "n9.1", Stage: kevlard.StageKey{Model: model.ID, Layers: kevlard.Layers{Hi: 1}},
		Class: "c", CellBytes: 8, Tokens: []kevlard.Token{1}, Positions: 9, Number: 1,
	}
	r.say("n1", offer)
	if got := sent[protocol.Stored](r.out)["n1"]; len(got) != 1 || got[0].Refusal != "" {
		t.Fatalf("before: %+v", got)
	}
	r.confirm("o", "n2")
	r.dispute("o", "n1")
	r.dispute("n2", "n1")
	r.say("n1", offer)
	if got := sent[protocol.Stored](r.out)["n1"]; len(got) != 1 || got[0].Refusal != protocol.RefusedNoStage || !strings.Contains(got[0].Detail, "disputed") {
		t.Errorf("after: %+v", got)
	}
}
