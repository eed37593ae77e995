package rdma

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kevlard/kevlard/rdma/rail"
	"github.com/kevlard/kevlard/rdma/verbs"
)

// TestSickDeviceIsLeftOut: of three cards, one does not open. The others' ports are there,
// in the order of their names.
func TestSickDeviceIsLeftOut(t *testing.T) {
	sick := errors.New("open RDMA device mlx5_1: input/output error")
	devices := []verbs.Device{
		{Name: "mlx5_10", Ports: []verbs.Port{{Number: 1}}},
		{Name: "mlx5_1", Ports: []verbs.Port{{Number: 1}}},
		{Name: "mlx5_0", Ports: []verbs.Port{{Number: 1}, {Number: 2}}},
	}
	for _, want := range []struct {
		only  []string
		ports []string
		left  int
	}{
		{nil, []string{"mlx5_0 port 1", "mlx5_0 port 2", "mlx5_10 port 1"}, 1},
		{[]string{"mlx5_1", "mlx5_10"}, []string{"mlx5_10 port 1"}, 1},
		{[]string{"mlx5_0"}, []string{"mlx5_0 port 1", "mlx5_0 port 2"}, 0},
		{[]string{"mlx5_1"}, nil, 1},
	} {
		var c Cards
		of := map[*verbs.Context]string{}
		c.open(devices, rail.Want{Devices: want.only}, func(name string) (*verbs.Context, error) {
			if name == "mlx5_1" {
				return nil, sick
			}
			x := new(verbs.Context)
			of[x] = name
			return x, nil
		})
		var ports []string
		for _, d := range c.Devices {
			p := d.(*card)
			ports = append(ports, fmt.Sprintf("%s port %d", of[p.context], p.port))
		}
		if !slices.Equal(ports, want.ports) || len(c.LeftOut) != want.left || want.left > 0 && !errors.Is(c.LeftOut[0], sick) {
			t.Errorf("of %v: %v, left out %v", want.only, ports, c.LeftOut)
		}
	}
}
