// Package kvbench measures how fast bulk pieces move over the loopback of this machine:
// the movers against bare connections that carry the same pieces, taking turns in one
// process. Both ends share the cores, so a figure is what a node could do that sends and
// receives at once; the ratio is what the mover costs.
package kvbench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// Options say what to measure.
type Options struct {
	Sizes  []int         // bytes of a piece, each 1 to 16 MiB
	Conns  int           // connections, each with one sender and one receiver
	Rounds int           // results are medians over these
	Each   time.Duration // of one way, one size, one round
	// Summed measures tcp-plain with checksums of its own, unlike KV.
	Summed bool
	Say    func(format string, args ...any)
}

// Result is one transport with one size of pieces. Speeds are in GB/s (1e9 bytes).
type Result struct {
	Transport string  `json:"transport"` // tcp-tls, tcp-plain or rdma
	Piece     int     `json:"piece_bytes"`
	Speed     float64 `json:"gbytes_s"`
	Ceiling   float64 `json:"ceiling_gbytes_s"`
	Ratio     float64 `json:"ratio"`
	CPU       float64 `json:"cpu_s_per_gb"` // CPU seconds of both ends for a GB

	CeilingCPU float64 `json:"ceiling_cpu_s_per_gb"`
	Worst      float64 `json:"ratio_min"` // of one round
	Best       float64 `json:"ratio_max"`

	// Of rdma: the speed of the mover over plain TCP in the same rounds, and the ratio to it.
	// Its ceiling is bare TCP.
	TCP   float64 `json:"tcp_gbytes_s,omitempty"`
	ToTCP float64 `json:"ratio_tcp,omitempty"`
}

// way moves pieces of one size until the time is over, then waits until all have arrived;
// it returns the bytes of their bodies.
type way interface {
	move(ctx context.Context, size int, until time.Time) (int64, error)
	close() error
}

// reading is one measurement.
type reading struct{ speed, cpu float64 }

// Run measures TCP, with TLS and plain.
func Run(ctx context.Context, o Options) ([]Result, error) {
	var out []Result
	for _, t := range []struct {
		name  string
		plain bool
	}{{"tcp-tls", false}, {"tcp-plain", true}} {
		results, err := transport(ctx, o, t.name, t.plain)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.name, err)
		}
		out = append(out, results...)
	}
	return out, nil
}

func transport(ctx context.Context, o Options, name string, plain bool) (_ []Result, err error) {
	moved, err := newMoved(o.Conns, plain, plain && !o.Summed)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, moved.close()) }()
	return against(ctx, o, name, plain, moved)
}

// against compares the first way with bare connections, and with another if there is one.
func against(ctx context.Context, o Options, name string, plain bool, moved ...way) (_ []Result, err error) {
	bare, err := newBare(o.Conns, plain)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bare.close()) }()

	var out []Result
	for _, size := range o.Sizes {
		r, err := compare(ctx, o, size, append([]way{moved[0], bare}, moved[1:]...))
		if err != nil {
			return nil, fmt.Errorf("pieces of %d bytes: %w", size, err)
		}
		r.Transport, r.Piece = name, size
		o.Say("%s, %d bytes: %.2f GB/s, ceiling %.2f", name, size, r.Speed, r.Ceiling)
		out = append(out, r)
	}
	return out, nil
}

// compare lets the ways take turns, after a short one each to warm up: the one that is
// measured, the ceiling, and a mover over TCP if it is to be compared with that.
func compare(ctx context.Context, o Options, size int, ways []way) (Result, error) {
	all := make([][]reading, len(ways))
	for _, w := range ways {
		if _, err := measure(ctx, w, size, o.Each/4); err != nil {
			return Result{}, err
		}
	}
	for round := range o.Rounds {
		for turn := range ways {
			i := (turn + round) % len(ways)
			r, err := measure(ctx, ways[i], size, o.Each)
			if err != nil {
				return Result{}, err
			}
			all[i] = append(all[i], r)
		}
	}
	var r Result
	r.Worst, r.Best = all[0][0].speed/all[1][0].speed, 0
	for i := range o.Rounds {
		ratio := all[0][i].speed / all[1][i].speed
		r.Worst, r.Best = min(r.Worst, ratio), max(r.Best, ratio)
	}
	r.Speed, r.CPU = medians(all[0])
	r.Ceiling, r.CeilingCPU = medians(all[1])
	r.Ratio = r.Speed / r.Ceiling
	if len(ways) > 2 {
		r.TCP, _ = medians(all[2])
		r.ToTCP = r.Speed / r.TCP
	}
	return r, nil
}

func measure(ctx context.Context, w way, size int, each time.Duration) (reading, error) {
	cpu, began := cpuTime(), time.Now()
	n, err := w.move(ctx, size, began.Add(each))
	if err != nil {
		return reading{}, err
	}
	took, gb := time.Since(began).Seconds(), float64(n)/1e9
	return reading{gb / took, (cpuTime() - cpu).Seconds() / gb}, nil
}

func medians(all []reading) (speed, cpu float64) {
	var speeds, cpus []float64
	for _, r := range all {
		speeds, cpus = append(speeds, r.speed), append(cpus, r.cpu)
	}
	slices.Sort(speeds)
	slices.Sort(cpus)
	return speeds[len(speeds)/2], cpus[len(cpus)/2]
}

// cpuTime is what this process has used of all cores, 0 where the system does not tell.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Memcpy returns the GB/s at which one core copies memory that no cache holds.
func Memcpy(each time.Duration) float64 {
	from, to := make([]byte, 64<<20), make([]byte, 64<<20)
	for i := range from {
		from[i] = byte(i)
	}
	copy(to, from) // touches the pages
	n, began := 0, time.Now()
	for time.Since(began) < each {
		n += copy(to, from)
	}
	return float64(n) / 1e9 / time.Since(began).Seconds()
}
