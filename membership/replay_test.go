package membership

import (
	"bytes"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// What somebody on the network sends without a secret in use is dropped. Each packet says
// that node 2 is suspected, to node 2, which contradicts where it believes the packet: so
// the last one, under the right secret, shows that the others would have been noticed.
func TestForeignPackets(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		removed, used := bytes.Repeat([]byte{7}, SecretSize), bytes.Repeat([]byte{9}, SecretSize)
		procs := w.ring(3)
		for _, step := range [][][]byte{{removed, used}, {used, removed}, {used}} {
			for _, p := range procs {
				if err := p.SetSecrets(step); err != nil {
					t.Fatal(err)
				}
			}
		}
		attacker, err := w.net.Listen(addrOf(99))
		if err != nil {
			t.Fatal(err)
		}
		target := procs[1]
		believed := func() int { return target.log.count("Refuting a suspect message") }
		sealed := func(ring string, secret []byte) []byte {
			b, err := suspicion(ring, secret, nameOf(2), nameOf(3), seniority(time.Now())+1)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		plain := bytes.NewBuffer([]byte{3}) // memberlist's number of a suspicion
		err = codec.NewEncoder(plain, &codec.MsgpackHandle{}).Encode(struct {
			Incarnation uint32
			Node, From  string
		}{seniority(time.Now()) + 1, nameOf(2), nameOf(3)})
		if err != nil {
			t.Fatal(err)
		}
		labelled := append(append([]byte{244, 4}, "test"...), plain.Bytes()...)
		flipped := sealed("test", used)
		flipped[len(flipped)-1] ^= 1
		for _, c := range []struct {
			name   string
			packet []byte
			want   int
		}{
			{"not encrypted, without a label", plain.Bytes(), 0},
			{"not encrypted", labelled, 0},
			{"of another ring", sealed("other", used), 0},
			{"under another secret", sealed("test", bytes.Repeat([]byte{8}, SecretSize)), 0},
			{"under the removed secret", sealed("test", removed), 0},
			{"with a bit flipped", flipped, 0},
			{"right", sealed("test", used), 1},
		} {
			before := believed()
			if _, err := attacker.WriteTo(c.packet, addrOf(2)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second) // virtual
			if n := believed() - before; n != c.want {
				t.Errorf("a packet %s was believed %d times, want %d", c.name, n, c.want)
			}
		}
		w.agree(10*time.Second, procs...)
	})
}

// Gossip has no protection against replay but the numbers in its messages: a suspicion is
// believed once, and has no effect when it comes again, at its subject or elsewhere.
func TestReplayedSuspicion(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		procs := w.ring(3)
		attacker, err := w.net.Listen(addrOf(99))
		if err != nil {
			t.Fatal(err)
		}
		packet, err := suspicion("test", bytes.Repeat([]byte{7}, SecretSize), nameOf(2), nameOf(3), seniority(time.Now())+1)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			for i := 2; i >= 1; i-- {
				if _, err := attacker.WriteTo(packet, addrOf(i)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
			}
			w.agree(time.Millisecond, procs...)
		}
		if n := procs[1].log.count("Refuting a suspect message"); n != 1 {
			t.Errorf("node 2 contradicted the same packet %d times, want once", n)
		}
		for _, p := range procs {
			if n := p.table.revived.Load(); n != 0 {
				t.Errorf("%s took %d for dead", p.cfg.Name, n)
			}
		}
	})
}

// Everything that a ring said while a node left, another died and a third was restarted
// is said to everybody again, by somebody who has no secret: to those who knew them nobody
// who left or died comes back, no former life does, and nobody is taken for dead. The
// restarted one, which never heard of who left, may show it until it does not answer.
func TestReplayedPackets(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var mu sync.Mutex
		var tape [][]byte
		w.tap = func(b []byte) {
			mu.Lock()
			defer mu.Unlock()
			tape = append(tape, bytes.Clone(b))
		}
		procs := w.ring(5)
		if err := procs[3].Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		procs[4].kill()
		procs[2].kill()
		procs[2] = w.start(w.config(3, seedsOf(1, 2)...))
		alive := procs[:3]
		w.agree(time.Minute, alive...)
		mu.Lock()
		recorded := slices.Clone(tape)
		mu.Unlock()
		views := func(s State) (out []string) {
			for _, p := range alive {
				out = append(out, p.view(s))
			}
			return out
		}
		dead, left := views(StateDead), views(StateLeft)
		var falsely uint64
		for _, p := range alive {
			falsely -= p.table.revived.Load()
		}

		attacker, err := w.net.Listen(addrOf(99))
		if err != nil {
			t.Fatal(err)
		}
		for _, packet := range recorded {
			for to := 1; to <= 3; to++ {
				if _, err := attacker.WriteTo(packet, addrOf(to)); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(5 * time.Millisecond) // virtual: no inbox runs over
			for _, p := range alive[:2] {
				if got, want := p.view(StateAlive), selves(alive...); got != want {
					t.Fatalf("%s shows alive [%s], want [%s]", p.cfg.Name, got, want)
				}
			}
		}
		t.Logf("%d packets, to each of %d nodes; all agree %v later", len(recorded), len(alive), w.agree(time.Minute, alive...))
		// The restarted node had not heard of the one that left before it: it learns that.
		left[2] = left[0]
		if d, l := views(StateDead), views(StateLeft); !slices.Equal(d, dead) || !slices.Equal(l, left) {
			t.Errorf("dead %q, left %q, before the replay %q and %q", d, l, dead, left)
		}
		for _, p := range alive {
			falsely += p.table.revived.Load()
		}
		if falsely != 0 {
			t.Errorf("%d deaths of nodes that live", falsely)
		}
	})
}
