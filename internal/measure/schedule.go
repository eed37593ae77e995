package measure

import "time"

// Schedule is when requests arrive and hosts break in one run. Two systems that are
// compared run the same one.
type Schedule struct {
	Arrivals []time.Duration // since the start, rising
	Faults   []Outage        // rising, never two at once
}

// Outage is one host that is broken for a while.
type Outage struct {
	Victim int // index of the host
	At     time.Duration
	Mend   time.Duration // when it is started again
}

// Plan lays out faults one after another: each lasts outage, and the next comes calm
// after the earlier one's end, half way between two requests: at that of an arrival the
// newest stream would always be in its prompt. Requests arrive at rps from the start
// until calm after the last fault's end. Victims are taken in turn; see Victim.
func Plan(rps float64, faults, hosts int, outage, calm time.Duration) Schedule {
	var s Schedule
	at := calm + time.Duration(float64(time.Second)/rps/2)
	for i := range faults {
		s.Faults = append(s.Faults, Outage{Victim: Victim(i, hosts), At: at, Mend: at + outage})
		at += outage + calm
	}
	for i := 0; ; i++ {
		arrival := time.Duration(float64(i) / rps * float64(time.Second))
		if arrival >= at {
			return s
		}
		s.Arrivals = append(s.Arrivals, arrival)
	}
}

// Victim returns the host to break i-th, from 0: each once before any comes again.
// Two in a row are about half the hosts apart, so mostly of different pipelines, but
// not the two holders of one stage: that would measure the one that has just come
// back.
func Victim(i, hosts int) int {
	stride := hosts/2 + 1
	for gcd(stride, hosts) != 1 {
		stride++
	}
	return i * stride % hosts
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
