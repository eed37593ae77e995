package rdma

import (
	"math/rand/v2"
	"testing"

	"github.com/kevlard/kevlard/rdma/rail"
)

func FuzzMessage(f *testing.F) {
	whole := make([]byte, messageLen(3, 5, false))
	putMessage(whole, []byte("abc"), [][]byte{[]byte("12"), []byte("345")}, 5, message{summed: true})
	ask := make([]byte, messageLen(3, 100_000, true))
	putMessage(ask, []byte("abc"), nil, 100_000, message{ask: true, number: 7, summed: true, sum: 9})
	f.Add(whole)
	f.Add(ask)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMessage(b, len(b))
		if err == nil && messageLen(len(m.header), m.bytes, m.ask) != len(b) {
			t.Errorf("%+v of %d bytes", m, len(b))
		}
	})
}

func FuzzRails(f *testing.F) {
	d := newFabric().device("x")
	r, _ := d.Rail()
	f.Add(encodeRails(nil))
	r.Addresses[0].Index = 0 // does not travel
	f.Add(encodeRails([]rail.Rail{r, r}))
	f.Fuzz(func(t *testing.T, b []byte) {
		rails, err := decodeRails(b)
		if err == nil && string(encodeRails(rails)) != string(b) {
			t.Errorf("%x is read as %+v", b, rails)
		}
	})
}

// TestSums: a body has one sum, however it is cut.
func TestSums(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, sumBytes - 1, sumBytes, sumBytes + 1, 3*sumBytes + 17} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		var parts [][]byte
		for rest := b; len(rest) > 0; {
			k := 1 + r.IntN(len(rest))
			parts, rest = append(parts, rest[:k]), rest[k:]
		}
		want := sumOf(0, b)
		dst := make([]byte, n)
		if got := gatherSum(dst, parts, true); got != want || string(dst) != string(b) {
			t.Errorf("%d bytes gathered: %x, want %x", n, got, want)
		}
	}
}

// TestStaging: places do not overlap, a large one is not starved, and all come back.
func TestStaging(t *testing.T) {
	s := newStaging(make([]byte, 2*maxPlace))
	var got []place
	take := func(n int) *request {
		r := &request{n: n, ready: func(p place) { got = append(got, p) }}
		s.get(r)
		return r
	}
	take(maxPlace)
	take(1)
	take(maxPlace) // waits
	small := take(1)
	if len(got) != 2 {
		t.Fatalf("%d places, want 2: a small one has overtaken a large one", len(got))
	}
	if !s.cancel(small) {
		t.Error("the small one was not waiting")
	}
	s.put(got[0])
	if len(got) != 3 || len(got[2].mem) != maxPlace {
		t.Fatalf("%d places, want 3", len(got))
	}
	s.put(got[1])
	s.put(got[2])
	if n := s.used(); n != 0 {
		t.Errorf("%d bytes are missing", n)
	}
}
