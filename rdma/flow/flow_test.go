package flow

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// sent is an immediate on its way, with what was written with it.
type sent struct {
	imm  Imm
	size int
	ask  bool
	seq  int
}

// TestBothEnds plays any pieces, withdrawals, refusals and delays between both ends, and
// breaks off anywhere: what is handed on is in order, whole and once; nothing that an end
// rejects is ever said; neither end needs more receives than it posts.
func TestBothEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Sending
		var r Taking
		var down, up []sent // to the receiver, to the sender
		next, last := 0, -1
		seqs := map[int]int{}        // by offset, of messages in the ring
		asks := map[uint32]int{}     // open at the sender: seq
		waiting := map[uint32]bool{} // without a place at the receiver
		dead := map[int]bool{}       // withdrawn or refused
		grants := map[uint32]bool{}
		check := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		drain := func() {
			for {
				offset, deliver, ok := r.Next()
				if !ok {
					return
				}
				seq := seqs[offset]
				if deliver == dead[seq] {
					t.Fatalf("piece %d: delivered %t, dead %t", seq, deliver, dead[seq])
				}
				if deliver && seq <= last {
					t.Fatalf("piece %d after %d", seq, last)
				}
				if deliver {
					last = seq
				}
				if imm, ok := r.Done(); ok {
					up = append(up, sent{imm: imm})
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"whole": func(t *rapid.T) {
				size := rapid.IntRange(1, 70_000).Draw(t, "size")
				if offset, ok := s.Reserve(size); ok {
					down = append(down, sent{imm: At(offset), size: size, seq: next})
					next++
				}
			},
			"ask": func(t *rapid.T) {
				size := rapid.IntRange(1, 70_000).Draw(t, "size")
				if !s.CanAsk() {
					return
				}
				if offset, ok := s.Reserve(size); ok {
					n := s.Ask()
					asks[n] = next
					down = append(down, sent{imm: At(offset), size: size, ask: true, seq: next | int(n)<<32})
					next++
				}
			},
			"withdraw": func(t *rapid.T) {
				for n := range asks {
					if s.Withdraw(n) {
						dead[asks[n]] = true
						delete(asks, n)
						down = append(down, sent{imm: Say(Withdraw, n)})
					}
					return
				}
			},
			"place": func(t *rapid.T) {
				for n := range waiting {
					delete(waiting, n)
					if !r.Granted(n) {
						t.Fatalf("ask %d cannot be granted", n)
					}
					up = append(up, sent{imm: Say(Grant, n)})
					return
				}
			},
			"write": func(t *rapid.T) {
				for n := range grants {
					delete(grants, n)
					delete(asks, n)
					down = append(down, sent{imm: s.Wrote(n)})
					return
				}
			},
			"receiver": func(t *rapid.T) {
				if len(down) == 0 {
					return
				}
				m := down[0]
				down = down[1:]
				if m.imm.Kind() != Piece {
					h, err := r.Take(m.imm)
					check(err)
					if h.Kind == Withdraw && h.Refuse {
						delete(waiting, h.Number)
						up = append(up, sent{imm: Say(Refuse, h.Number)})
					}
					drain()
					return
				}
				offset, err := r.Arrived(m.imm)
				check(err)
				seqs[offset] = m.seq & (1<<32 - 1)
				if !m.ask {
					check(r.Whole(offset, m.size))
				} else {
					n := uint32(m.seq >> 32)
					check(r.Asked(offset, m.size, n))
					if rapid.Bool().Draw(t, "refuse") {
						r.Refused(n)
						dead[seqs[offset]] = true
						up = append(up, sent{imm: Say(Refuse, n)})
					} else {
						waiting[n] = true
					}
				}
				drain()
			},
			"sender": func(t *rapid.T) {
				if len(up) == 0 {
					return
				}
				told, err := s.Take(up[0].imm)
				check(err)
				up = up[1:]
				switch {
				case told.Withdrawn:
				case told.Kind == Grant:
					grants[told.Number] = true
				case told.Kind == Refuse:
					delete(asks, told.Number)
				}
			},
			"": func(t *rapid.T) {
				if len(down) > ReceiverReceives || len(up) > SenderReceives {
					t.Fatalf("%d and %d under way: the ends post %d and %d receives", len(down), len(up), ReceiverReceives, SenderReceives)
				}
			},
		})
	})
}

func FuzzSetup(f *testing.F) {
	f.Add(Setup{Endpoint: Endpoint{MTU: 3, Size: Window * GrantBytes}}.Encode(), false)
	f.Add(Setup{Answer: true, Endpoint: Endpoint{MTU: 5, Ethernet: true, GID: [16]byte{1}, Size: RingBytes}}.Encode(), true)
	f.Fuzz(func(t *testing.T, b []byte, answer bool) {
		s, err := DecodeSetup(b, answer)
		if err == nil && !bytes.Equal(s.Encode(), b) {
			t.Errorf("%x is read as %+v", b, s)
		}
	})
}

func FuzzPlace(f *testing.F) {
	f.Add(make([]byte, GrantBytes), uint32(1), uint32(2))
	f.Fuzz(func(t *testing.T, b []byte, number, size uint32) {
		if p, err := DecodePlace(b, number, size); err == nil && (p.Size != size || p.Addr+uint64(size) < p.Addr) {
			t.Errorf("%+v", p)
		}
	})
}

// FuzzImmediates gives both ends any immediates: they refuse, and never panic.
func FuzzImmediates(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 2, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Sending
		var r Taking
		s.Reserve(5000)
		s.Ask()
		for ; len(b) >= 4; b = b[4:] {
			imm := Say(Kind(b[0]), uint32(b[1])<<16|uint32(b[2])<<8|uint32(b[3]))
			_, _ = s.Take(imm)
			if offset, err := r.Arrived(imm); err == nil {
				_ = r.Asked(offset, 1+int(b[3])*300, uint32(b[2]))
			}
			_, _ = r.Take(imm)
			r.Granted(uint32(b[2]))
			if _, _, ok := r.Next(); ok {
				r.Done()
			}
		}
	})
}
