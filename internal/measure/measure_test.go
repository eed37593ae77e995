package measure

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func near(a, b, within float64) bool { return math.Abs(a-b) <= within }

// TestStudent compares with published tables of the t distribution.
func TestStudent(t *testing.T) {
	for df, want := range map[int]float64{1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 29: 2.045, 100: 1.984, 10000: 1.960} {
		if got := student975(df); !near(got, want, 0.005*want) {
			t.Errorf("df %d: %v, want %v", df, got, want)
		}
	}
}

func TestMean95(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   Interval
	}{
		{nil, Interval{}},
		{[]float64{3}, Interval{3, 3, 3}},
		{[]float64{2, 2, 2}, Interval{2, 2, 2}},
		// Mean 3, standard deviation sqrt(2.5), half width 2.776 * sqrt(2.5/5).
		{[]float64{1, 2, 3, 4, 5}, Interval{3, 3 - 1.963, 3 + 1.963}},
	} {
		got := Mean95(c.values)
		if !near(got.Mean, c.want.Mean, 1e-9) || !near(got.Lo, c.want.Lo, 0.01) || !near(got.Hi, c.want.Hi, 0.01) {
			t.Errorf("%v: %+v, want %+v", c.values, got, c.want)
		}
	}
}

// TestMean95Covers draws many samples: about 95 of 100 intervals hold the true mean.
func TestMean95Covers(t *testing.T) {
	held, all, seed := 0, 2000, uint64(1)
	next := func() float64 { // sum of 12 uniforms: nearly normal around 0
		sum := -6.0
		for range 12 {
			seed = seed*6364136223846793005 + 1442695040888963407
			sum += float64(seed>>11) / (1 << 53)
		}
		return sum
	}
	for range all {
		values := make([]float64, 8)
		for i := range values {
			values[i] = next()
		}
		if in := Mean95(values); in.Lo <= 0 && in.Hi >= 0 {
			held++
		}
	}
	if share := float64(held) / float64(all); !near(share, 0.95, 0.02) {
		t.Errorf("%.3f of the intervals hold the mean, want 0.95", share)
	}
}

func TestQuantileIsNearestRank(t *testing.T) {
	v := []float64{4, 1, 3, 2}
	for _, c := range []struct{ q, want float64 }{{0, 1}, {0.25, 1}, {0.5, 2}, {0.51, 3}, {0.99, 4}, {1, 4}} {
		if got := Quantile(v, c.q); got != c.want {
			t.Errorf("quantile %v is %v, want %v", c.q, got, c.want)
		}
	}
	if Quantile(nil, 0.5) != 0 || Mean(nil) != 0 || Mean(v) != 2.5 {
		t.Error("empty or mean")
	}
}

func TestCost(t *testing.T) {
	pairs := []Pair{{On: 103, Off: 100}, {On: 50.5, Off: 50}, {On: 200, Off: 200}}
	got := Cost(pairs) // the third root of 1.03 x 1.01; logarithms 0.02956, 0.00995 and 0
	if !near(got.Mean, 1.32568, 1e-4) || !near(got.Hi, 100*math.Expm1(0.01317+4.303*0.01504/math.Sqrt(3)), 0.01) {
		t.Errorf("got %+v", got)
	}
	// Equal noise on both sides costs nothing, and a half without a value says nothing.
	if got := Cost([]Pair{{On: 1, Off: 2}, {On: 2, Off: 1}, {On: 5}}); !near(got.Mean, 0, 1e-9) || !near((1+got.Hi/100)*(1+got.Lo/100), 1, 1e-9) {
		t.Errorf("noise alone: %+v", got)
	}
	if Percent(5, 0) != 0 || Ratio(5, 0) != 0 || Percent(90, 100) != -10 {
		t.Error("percent or ratio")
	}
	// Together 6 more for 3 units of work, whoever did how much of it.
	if got := PerUnit([]Pair{{On: 5, Off: 3}, {On: 6, Off: 2}}, 3); got.Mean != 2 {
		t.Errorf("per unit %+v, want 2", got)
	}
	if got := PerUnit([]Pair{{On: 5, Off: 3}}, 0); got.Mean != 0 {
		t.Errorf("per unit of no work %+v", got)
	}
}

func TestOrderOfPairs(t *testing.T) {
	var order []string
	for i := range 4 {
		if OnFirst(i) {
			order = append(order, "on", "off")
		} else {
			order = append(order, "off", "on")
		}
	}
	if want := []string{"off", "on", "on", "off", "off", "on", "on", "off"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

func TestBuckets(t *testing.T) {
	for _, c := range []struct {
		lo, hi int
		want   []int
	}{
		{50, 900, []int{49, 200, 500, 900}},
		{200, 500, []int{199, 200, 500}},
		{201, 400, []int{200, 400}},
		{10, 100, []int{9, 100}},
	} {
		if got := ContextEdges(c.lo, c.hi); !slices.Equal(got, c.want) {
			t.Errorf("%d to %d: edges %v, want %v", c.lo, c.hi, got, c.want)
		}
	}
	b := Buckets(ContextEdges(50, 900)...)
	for _, context := range []int{50, 200, 201, 500, 501, 900, 950} {
		Put(b, context, float64(context))
	}
	for i, want := range [][]float64{{50, 200}, {201, 500}, {501, 900, 950}} {
		if !slices.Equal(b[i].Values, want) {
			t.Errorf("bucket %d holds %v, want %v", i, b[i].Values, want)
		}
	}
}

func TestSpread(t *testing.T) {
	if got := Spread(5, 9, 1); !slices.Equal(got, []int{5}) {
		t.Errorf("one of them is %v", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		lo := rapid.IntRange(0, 500).Draw(t, "lo")
		n := rapid.IntRange(2, 40).Draw(t, "n")
		hi := lo + rapid.IntRange(0, 1000).Draw(t, "width")
		got := Spread(lo, hi, n)
		s := slices.Sorted(slices.Values(got))
		if len(s) != n || s[0] != lo || s[n-1] != hi {
			t.Fatalf("%v: want %d from %d to %d", got, n, lo, hi)
		}
		for i := 1; i < n; i++ {
			if step := float64(s[i] - s[i-1]); step > float64(hi-lo)/float64(n-1)+1 {
				t.Fatalf("%v has a hole of %v", s, step)
			}
		}
	})
}

func TestPlan(t *testing.T) {
	s := Plan(2, 3, 8, 10*time.Second, 5*time.Second)
	const first = 5250 * time.Millisecond // 250 ms after an arrival
	want := []Outage{{0, first, first + 10*time.Second}, {5, first + 15*time.Second, first + 25*time.Second}, {2, first + 30*time.Second, first + 40*time.Second}}
	if !slices.Equal(s.Faults, want) {
		t.Errorf("faults %v, want %v", s.Faults, want)
	}
	if n := len(s.Arrivals); n != 101 || s.Arrivals[0] != 0 || s.Arrivals[n-1] != 50*time.Second {
		t.Errorf("%d arrivals until %v", n, s.Arrivals[n-1])
	}
}

func abs(n int) int { return max(n, -n) }

func TestVictimsTakeTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosts := rapid.IntRange(1, 20).Draw(t, "hosts")
		round := rapid.IntRange(0, 3).Draw(t, "round") * hosts
		var got []int
		for i := range hosts {
			got = append(got, Victim(round+i, hosts))
		}
		s := slices.Sorted(slices.Values(got))
		for i := range s {
			if s[i] != i {
				t.Fatalf("of %d hosts the victims are %v", hosts, got)
			}
			if apart := abs(got[i] - got[(i+1)%hosts]); hosts > 2 && 2*apart == hosts {
				t.Fatalf("of %d hosts the victims are %v: two holders of one stage in a row", hosts, got)
			}
		}
	})
}
