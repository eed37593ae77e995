package gpu

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kevlard/kevlard/gpu/health"
)

// tree writes files below a new directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestAMD(t *testing.T) {
	const a, b = "sys/devices/pci0000:00/0000:c3:00.0/", "sys/devices/pci0000:00/0000:83:00.0/"
	root := tree(t, map[string]string{
		a + "vendor": "0x1002\n", a + "mem_info_vram_total": "206141652992\n", a + "mem_info_vram_used": "1000\n", a + "product_name": "AMD Instinct MI300X\n", a + "unique_id": "d2f1b8a0c0ffee01\n",
		a + "hwmon/hwmon3/temp1_label": "edge\n", a + "hwmon/hwmon3/temp1_input": "41000\n",
		a + "hwmon/hwmon3/temp2_label": "junction\n", a + "hwmon/hwmon3/temp2_input": "55000\n", a + "hwmon/hwmon3/temp2_crit": "100000\n", a + "hwmon/hwmon3/temp2_emergency": "105000\n",
		a + "hwmon/hwmon3/temp3_label": "mem\n", a + "hwmon/hwmon3/temp3_input": "80000\n",
		a + "ras/umc_err_count": "ue: 2\nce: 40\n", a + "ras/gfx_err_count": "ue: 1\nce: 0\n",
		b + "vendor": "0x1002\n", b + "mem_info_vram_total": "16000\n",
		"sys/devices/pci0000:00/0000:01:00.0/vendor":                         "0x10de\n",
		"sys/devices/pci0000:00/0000:02:00.0/vendor":                         "0x1002\n", // no memory of its own
		"sys/devices/pci0000:00/0000:02:00.0/mem_info_vram_total":            "many\n",
		"sys/class/drm/card0-DP-1/device/vendor":                             "0x1002\n",
		"sys/class/drm/card0-DP-1/device/mem_info_vram_total":                "5\n",
		"sys/class/drm/version":                                              "drm 1.1.0\n",
		"sys/devices/pci0000:00/0000:c3:00.0/ras/features":                   "x",
		"sys/devices/pci0000:00/0000:c3:00.0/ras/sdma_err_count_not_a_count": "ue: 100\n",
	})
	for card, dev := range map[string]string{"card1": "0000:c3:00.0", "card0": "0000:83:00.0", "card2": "0000:01:00.0", "card3": "0000:02:00.0"} {
		dir := filepath.Join(root, "sys/class/drm", card)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../../../devices/pci0000:00/"+dev, filepath.Join(dir, "device")); err != nil {
			t.Fatal(err)
		}
	}
	got := readAMD(root)
	want := []health.Device{
		{Index: 0, Vendor: "amd", PCI: "0000:83:00.0", MemoryTotal: 16000},
		{
			Index: 1, Vendor: "amd", Name: "AMD Instinct MI300X", UUID: "GPU-d2f1b8a0c0ffee01", PCI: "0000:c3:00.0", MemoryTotal: 206141652992, MemoryUsed: 1000, MemoryFree: 206141651992,
			Temperature: 55, Slowdown: 100, Shutdown: 105, ECCVolatile: 3,
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

func TestNoDevices(t *testing.T) {
	if got := readAMD(t.TempDir()); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// records are lines as /dev/kmsg has them.
const records = "6,1,100,-;usb 1-1: new device\n SUBSYSTEM=usb\n DEVICE=c189:1\n" +
	"3,2,200,-;NVRM: Xid (PCI:0000:3b:00): 48, pid=1, name=a, DBE\n" +
	" NVRM: Xid (PCI:0000:3b:00): 79, of a continuation\n" +
	"3,3,300,-,caller=T1;NVRM: Xid (PCI:0000:5e:00): 13, pid=2, x; y\n"

func TestBootXids(t *testing.T) {
	root := tree(t, map[string]string{"dev/kmsg": records})
	got, err := bootXids(filepath.Join(root, "dev/kmsg"))
	want := []health.Xid{{PCI: "0000:3b:00", Code: 48, Text: "pid=1, name=a, DBE"}, {PCI: "0000:5e:00", Code: 13, Text: "pid=2, x; y"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if h := Look(Options{Root: t.TempDir(), Library: "/nonexistent"}); h.Kernel == nil || !os.IsNotExist(unwrapAll(h.Kernel)) {
		t.Errorf("no kernel log: %v", h.Kernel)
	}
}

func unwrapAll(err error) error {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err
		}
		err = u.Unwrap()
	}
}

// TestFollowKernel reads from a pipe what comes while it reads, and ends when told.
func TestFollowKernel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	f, err := openKernel(path, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan health.Xid)
	ended := make(chan error, 1)
	go func() { ended <- followKernel(ctx, f, func(x health.Xid) { got <- x }) }()
	if _, err := w.WriteString("6,9,1,-;" + strings.Repeat("x", 3*maxRecord) + "\n" + records); err != nil {
		t.Fatal(err)
	}
	if a, b := <-got, <-got; a.Code != 48 || b.Code != 13 {
		t.Errorf("%+v, %+v", a, b)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func FuzzKernelXid(f *testing.F) {
	for line := range strings.Lines(records) {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if x, ok := kernelXid(line); ok && (x.Code < 1 || x.PCI == "") {
			t.Fatalf("%+v", x)
		}
	})
}

func TestReplay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gpus.jsonl")
	add := func(text string) {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	add(`{"devices":[{"index":0,"uuid":"GPU-0","pci":"0000:3b:00.0","temperature":50}]}` + "\n")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan health.Reading)
	ended := make(chan error, 1)
	go func() {
		ended <- Replay(ctx, path, time.Millisecond, func(r health.Reading) {
			select {
			case got <- r:
			case <-ctx.Done():
			}
		})
	}()
	for range 3 { // the last one counts until the next
		if r := <-got; len(r.Devices) != 1 || r.Devices[0].Temperature != 50 {
			t.Fatalf("%+v", r)
		}
	}
	add(`{"devices":[{"index":0,"uuid":"GPU-0","temperature":90}],`) // a line that is not whole yet
	if r := <-got; r.Devices[0].Temperature != 50 {
		t.Fatalf("%+v", r)
	}
	add(`"kernel":["NVRM: Xid (PCI:0000:3b:00): 48, x"]}` + "\n")
	lines := 0
	for range 50 {
		r := <-got
		lines += len(r.Kernel)
		if lines > 0 && r.Devices[0].Temperature != 90 {
			t.Fatalf("%+v", r)
		}
	}
	if lines > 1 {
		t.Errorf("a kernel line was told %d times", lines)
	}
	for lines == 0 {
		lines += len((<-got).Kernel)
	}
	add("{\"devises\":[]}\n")
	for {
		select {
		case <-got:
			continue
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "line 3") || !strings.Contains(err.Error(), "devises") {
				t.Errorf("a line that is no reading: %v", err)
			}
		}
		break
	}
}

func FuzzParseReading(f *testing.F) {
	f.Add([]byte(`{"devices":[{"index":0,"uuid":"GPU-0","throttle":["thermal"]}],"kernel":["x"]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		if r, err := parseReading(line); err == nil {
			var p health.Policy
			p.Judge(1, r)
		}
	})
}
