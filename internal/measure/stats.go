package measure

import (
	"math"
	"slices"
)

// Interval is a mean with its 95 % interval.
type Interval struct {
	Mean   float64
	Lo, Hi float64 // both are Mean when there are fewer than two values
}

// Mean95 returns the mean of independent values with Student's 95 % interval of it.
// Without values all is 0.
func Mean95(values []float64) Interval {
	n := float64(len(values))
	if n == 0 {
		return Interval{}
	}
	mean := 0.0
	for _, v := range values {
		mean += v / n
	}
	if n < 2 {
		return Interval{mean, mean, mean}
	}
	squares := 0.0
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	half := student975(len(values)-1) * math.Sqrt(squares/(n-1)/n)
	return Interval{mean, mean - half, mean + half}
}

// student975 returns the 97.5 % quantile of Student's t with df degrees of freedom,
// at least 1: exact for 1 and 2, else Cornish and Fisher's series around the normal
// quantile, which is good to half a percent from 3 on.
func student975(df int) float64 {
	const z = 1.959963984540054 // of the normal distribution
	switch df {
	case 1:
		return 12.706204736
	case 2:
		return 4.302652730
	}
	n := float64(df)
	z2 := z * z
	g1 := z * (z2 + 1) / 4
	g2 := z * (5*z2*z2 + 16*z2 + 3) / 96
	g3 := z * (3*z2*z2*z2 + 19*z2*z2 + 17*z2 - 15) / 384
	g4 := z * (79*z2*z2*z2*z2 + 776*z2*z2*z2 + 1482*z2*z2 - 1920*z2 - 945) / 92160
	return z + g1/n + g2/(n*n) + g3/(n*n*n) + g4/(n*n*n*n)
}

// Quantile returns the value at or below which the fraction q of the values lie
// (nearest rank), or 0 for none.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(q*float64(len(s))-1e-9)) - 1
	return s[min(max(rank, 0), len(s)-1)]
}

// Mean returns the average, or 0 for none.
func Mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return Ratio(sum, float64(len(values)))
}

// Ratio returns a/b, or 0 where b is 0: JSON has no infinity, and a figure that
// could not be measured is shown as 0.
func Ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// Percent returns by how many percent on is more than off, or 0 where off is 0.
func Percent(on, off float64) float64 { return 100 * Ratio(on-off, off) }
