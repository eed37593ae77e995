package measure

import "math"

// Pair is one quantity with the thing under test on and off, measured one right
// after the other.
type Pair struct{ On, Off float64 }

// OnFirst reports whether pair i, from 0, measures "on" before "off". The order is
// off on, on off, off on, ...: a machine that slowly gets faster or slower favours
// neither.
func OnFirst(i int) bool { return i%2 == 1 }

// Cost returns by how many percent "on" is more than "off", as the mean over the
// pairs with its 95 % interval. The mean is that of the logarithms of the ratios, so
// that noise cancels: the plain mean of ratios is above 1 where both halves have the
// same noise, by half of its variance and more (a pair of 0.5 and one of 2 cost
// nothing together, not 25 %). A pair with a half of 0 counts as equal.
func Cost(pairs []Pair) Interval {
	each := make([]float64, len(pairs))
	for i, p := range pairs {
		if p.On > 0 && p.Off > 0 {
			each[i] = math.Log(p.On / p.Off)
		}
	}
	in := Mean95(each)
	return Interval{Mean: 100 * math.Expm1(in.Mean), Lo: 100 * math.Expm1(in.Lo), Hi: 100 * math.Expm1(in.Hi)}
}

// PerUnit returns how much "on" is more than "off" for each unit of work, such as
// seconds of processor for each gigabyte: the differences of the pairs over the mean
// work of a pair. The interval is that of the differences: all pairs do the same work.
func PerUnit(pairs []Pair, work float64) Interval {
	each := make([]float64, len(pairs))
	for i, p := range pairs {
		each[i] = Ratio((p.On-p.Off)*float64(len(pairs)), work)
	}
	return Mean95(each)
}
