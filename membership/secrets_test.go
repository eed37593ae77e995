package membership

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
)

// K33: the secret is changed while a node is down. It comes back with the old one:
// it is let in by nobody, both sides say why, no second ring forms around it, and it
// rejoins by itself once it has the new one.
func TestSecretChangedWithANodeDown(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		before, after := bytes.Repeat([]byte{7}, SecretSize), bytes.Repeat([]byte{9}, SecretSize)
		procs := w.ring(5)
		procs[4].kill()
		rest := without(procs, 4)
		w.agree(10*time.Second, rest...)
		for _, step := range [][][]byte{{before, after}, {after, before}, {after}} {
			for _, p := range rest {
				if err := p.SetSecrets(step); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)            // members are at different steps
				w.agree(time.Millisecond, rest...) // and none notices
			}
		}
		time.Sleep(30 * time.Second)
		w.agree(time.Millisecond, rest...)

		late := w.start(w.config(5, seedsOf(1, 2, 3)...))
		time.Sleep(time.Minute)
		if got := late.view(StateAlive); got != selves(late) {
			t.Errorf("with the old secret it shows alive [%s]", got)
		}
		w.agree(time.Millisecond, rest...)
		if late.log.count("level=WARN", "gossips with a different secret") == 0 {
			t.Error("the late node does not say why it is alone")
		}
		if rest[0].log.count("level=WARN", "a node at "+addrOf(5)+" gossips with a different secret") == 0 {
			t.Error("the ring does not say who has another secret")
		}

		if err := late.SetSecrets([][]byte{after}); err != nil {
			t.Fatal(err)
		}
		t.Logf("back after %v", w.agree(time.Minute, append(rest, late)...))
	})
}

func TestSetSecrets(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.start(w.config(1))
		secret := func(b byte) []byte { return bytes.Repeat([]byte{b}, SecretSize) }
		for _, step := range [][]byte{{1}, {1, 2}, {2, 1}, {3, 1}, {1, 3}, {4, 5}, {4}, {7}} {
			var want [][]byte
			for _, b := range step {
				want = append(want, secret(b))
			}
			if err := p.SetSecrets(want); err != nil {
				t.Fatal(err)
			}
			if got := p.keyring.GetKeys(); !slices.EqualFunc(got, want, bytes.Equal) {
				t.Fatalf("after %v: %x", step, got)
			}
		}
		for _, bad := range [][][]byte{nil, {secret(1), secret(1)}, {secret(1), secret(2), secret(3)}, {[]byte("short")}} {
			if err := p.SetSecrets(bad); err == nil {
				t.Errorf("took %d secrets", len(bad))
			}
		}
		if id := SecretID(secret(1)); len(id) != 12 || id == SecretID(secret(2)) || strings.Contains(id, "0101") {
			t.Errorf("ID %q", id)
		}
	})
}
