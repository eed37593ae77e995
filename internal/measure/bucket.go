package measure

import "math"

// Bucket is the values whose key is above Above and at most UpTo.
type Bucket struct {
	Above, UpTo int
	Values      []float64
}

// Buckets returns one empty bucket for each range between two edges, which rise.
func Buckets(edges ...int) []Bucket {
	var out []Bucket
	for i := 1; i < len(edges); i++ {
		out = append(out, Bucket{Above: edges[i-1], UpTo: edges[i]})
	}
	return out
}

// ContextEdges returns the edges of the groups in which recoveries with contexts
// from lo to hi are reported: 200 and 500 where they lie inside.
func ContextEdges(lo, hi int) []int {
	edges := []int{lo - 1}
	for _, e := range []int{200, 500} {
		if lo <= e && e < hi {
			edges = append(edges, e)
		}
	}
	return append(edges, hi)
}

// Put adds a value to the bucket of its key. A key outside all of them counts for
// the nearest one.
func Put(buckets []Bucket, key int, value float64) {
	for i := range buckets {
		if key <= buckets[i].UpTo || i == len(buckets)-1 {
			buckets[i].Values = append(buckets[i].Values, value)
			return
		}
	}
}

// Spread returns n whole numbers from lo to hi, evenly, in an order in which
// neighbours lie far apart, so that whatever takes some in a row gets short and long
// ones alike.
func Spread(lo, hi, n int) []int {
	out := make([]int, n)
	for i := range out {
		// The multiples of the golden ratio, which fill the unit interval evenly;
		// then by rank, so that both ends are there.
		rank := 0
		for j := range n {
			if golden(j) < golden(i) {
				rank++
			}
		}
		out[i] = lo
		if n > 1 {
			out[i] = lo + int(math.Round(float64((hi-lo)*rank)/float64(n-1)))
		}
	}
	return out
}

func golden(i int) float64 { return math.Mod(float64(i)*math.Phi, 1) }
