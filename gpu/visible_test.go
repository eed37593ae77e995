package gpu

import (
	"strings"
	"testing"

	"github.com/kevlard/kevlard/gpu/health"
)

// four is a host with three GPUs of NVIDIA, of which one is cut, and one of AMD.
func four() []health.Device {
	return []health.Device{
		{Index: 0, UUID: "GPU-aaaa-1", Vendor: "nvidia", PCI: "0000:3b:00.0"},
		{Index: 1, UUID: "GPU-aabb-2", Vendor: "nvidia", PCI: "0000:5e:00.0", MIG: true, Instances: []health.Instance{{UUID: "MIG-1"}, {UUID: "MIG-2"}}},
		{Index: 2, UUID: "GPU-cccc-3", Vendor: "nvidia", PCI: "0000:86:00.0"},
		{Index: 0, Vendor: "amd", PCI: "0000:af:00.0"},
	}
}

func TestTargets(t *testing.T) {
	for _, c := range []struct {
		name    string
		visible string
		set     bool
		want    string // Visible of each, or a part of the error after !
	}{
		{"not set", "", false, "GPU-aaaa-1 MIG-1 MIG-2 GPU-cccc-3"},
		{"empty hides all", "", true, ""},
		{"-1 hides all", "-1", true, ""},
		{"NoDevFiles", "NoDevFiles", true, ""},
		{"its order counts", "2,0", true, "GPU-cccc-3 GPU-aaaa-1"},
		{"UUIDs", "GPU-cccc-3,GPU-aaaa-1", true, "GPU-cccc-3 GPU-aaaa-1"},
		{"the beginning of a UUID", "GPU-cc", true, "GPU-cccc-3"},
		{"an instance", "MIG-2", true, "MIG-2"},
		{"spaces", " 0 , 2 ", true, "GPU-aaaa-1 GPU-cccc-3"},
		{"-1 ends it", "0,-1,2", true, "GPU-aaaa-1"},
		{"the index of one that is cut is its first instance", "1", true, "MIG-1"},
		{"an index that is not there", "0,7", true, "!entry 2, 7: this host has 0 to 2"},
		{"an ambiguous UUID", "GPU-aa", true, "!MIG is on there"},
		{"a UUID of nobody", "GPU-zz", true, "!no such GPU: want an index, GPU-UUID or MIG-UUID"},
		{"the UUID of one that is cut", "GPU-aabb-2", true, "!MIG is on there: name one of its instances"},
		{"twice", "0,GPU-aaaa-1", true, "!a second time"},
		{"a hole", "0,,2", true, "!entry 2 is empty"},
		{"a word", "all", true, "!want an index"},
	} {
		got, err := Targets(four(), c.visible, c.set)
		if says, bad := strings.CutPrefix(c.want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), c.visible) {
				t.Errorf("%s: %v: want %q and the value", c.name, err, says)
			}
			continue
		}
		var names []string
		for _, x := range got {
			names = append(names, x.Visible)
		}
		if err != nil || strings.Join(names, " ") != c.want {
			t.Errorf("%s: %v, %v: want %s", c.name, names, err, c.want)
		}
	}
	if _, err := Targets([]health.Device{{UUID: "GPU-1", MIG: true, Vendor: "nvidia"}}, "0", true); err == nil || !strings.Contains(err.Error(), "nvidia-smi mig -cgi") {
		t.Errorf("MIG without instances: %v", err)
	}
	two := []health.Device{{UUID: "GPU-ab1", Vendor: "nvidia"}, {Index: 1, UUID: "GPU-ab2", Vendor: "nvidia"}}
	if _, err := Targets(two, "GPU-ab", true); err == nil || !strings.Contains(err.Error(), "it names 2 GPUs") {
		t.Errorf("ambiguous: %v", err)
	}
}

func FuzzTargets(f *testing.F) {
	f.Add("0,2", true)
	f.Add("GPU-aa,MIG-2,-1", true)
	f.Fuzz(func(t *testing.T, visible string, set bool) {
		got, err := Targets(four(), visible, set)
		if err != nil && len(got) > 0 || len(got) > 5 {
			t.Fatalf("%q: %v, %v", visible, got, err)
		}
	})
}
