package load

import (
	"slices"
	"time"
)

// Quantile returns the value at or below which the fraction q of the durations
// lie (nearest rank), or 0 for none.
func Quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(d))
	rank := int(q*float64(len(s))+0.999999) - 1
	return s[min(max(rank, 0), len(s)-1)]
}

// Mean returns the average duration, or 0 for none.
func Mean(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	var sum time.Duration
	for _, v := range d {
		sum += v
	}
	return sum / time.Duration(len(d))
}

// Millis returns d in milliseconds.
func Millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
