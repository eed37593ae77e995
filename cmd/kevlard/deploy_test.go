package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kevlard/kevlard/cmd/kevlard/config"
)

const (
	exampleConfig = "../../deploy/kevlard.toml"
	unitFile      = "../../deploy/systemd/kevlard.service"
	gatewayUnit   = "../../deploy/systemd/kevlard-gateway.service"
)

// TestExampleConfig checks that the example is accepted without a warning, and that
// what it shows as a default is one.
func TestExampleConfig(t *testing.T) {
	if r := program(t, nil, "", "config", "check", exampleConfig); r.code != 0 || r.stderr != "" {
		t.Fatalf("%+v", r)
	}
	text, err := os.ReadFile(exampleConfig)
	if err != nil {
		t.Fatal(err)
	}
	// With every key that is commented out put in, it says the same, but for the API,
	// whose commented keys are not defaults.
	shown := regexp.MustCompile(`(?m)^# ([a-z_]+ = .*)$`).ReplaceAll(text, []byte("$1"))
	load := func(data []byte) config.Config {
		t.Helper()
		loaded, problems := config.Load(config.Source{Defaults: config.Defaults(), File: exampleConfig, Data: data})
		if len(problems)+len(loaded.Warnings) > 0 {
			t.Fatalf("%v %v", problems, loaded.Warnings)
		}
		return loaded.Config
	}
	want, got := load(text), load(shown)
	want.API, got.API = config.API{}, config.API{}
	for i, f := range got.Fields() {
		if w := want.Fields()[i]; f.Text() != w.Text() {
			t.Errorf("%s is %s when it is commented in, else %s", f.Key, f.Text(), w.Text())
		}
	}
}

// TestUnits checks that the units agree with the program, that systemd reads them, and
// that it calls their exposure at most 4.0 although GPUs and RDMA devices can be seen.
func TestUnits(t *testing.T) {
	t.Run("host", func(t *testing.T) { testUnit(t, unitFile, "/usr/local/bin/kevlard agent", "infinity") })
	t.Run("gateway", func(t *testing.T) {
		testUnit(t, gatewayUnit, "/usr/local/bin/kevlard agent --node-role gateway", "")
	})
	host, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	if hides := regexp.MustCompile(`(?m)^(PrivateDevices|DevicePolicy|DeviceAllow|ProtectClock|ProcSubset|PrivateUsers|PrivateNetwork|MemoryDenyWriteExecute|InaccessiblePaths)=`).FindString(string(host)); hides != "" {
		t.Errorf("%s in %s: it can hide /dev/nvidia* or /dev/infiniband", hides, unitFile)
	}
}

func testUnit(t *testing.T, file, start, memlock string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	value := func(key string) string {
		if key == "LimitMEMLOCK" && memlock == "" {
			return ""
		}
		m := regexp.MustCompile(`(?m)^` + key + `=(.*)$`).FindSubmatch(text)
		if m == nil {
			t.Fatalf("%s is missing", key)
		}
		return string(m[1])
	}
	stop, err := strconv.Atoi(value("TimeoutStopSec"))
	if most := drainTimeout + daemonGrace + apiGrace + controlGrace; err != nil || time.Duration(stop)*time.Second <= most {
		t.Errorf("TimeoutStopSec=%d, but a stop may take %v: %v", stop, most, err)
	}
	for key, want := range map[string]string{
		"Type": "notify", "WatchdogSec": "30", "KillMode": "mixed", "LimitMEMLOCK": memlock, "RuntimeDirectory": filepath.Base(filepath.Dir(systemSocket)),
		"ConfigurationDirectory": filepath.Base(filepath.Dir(defaultConfigFile)), "ConfigurationDirectoryMode": "0750", "StateDirectory": filepath.Base(config.Defaults().Node.DataDir),
		"RestartPreventExitStatus": strconv.Itoa(exitUsage), "ExecStart": start,
	} {
		if got := value(key); got != want {
			t.Errorf("%s=%s: want %s", key, got, want)
		}
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed: systemd did not read the unit")
	}
	// It wants the program to be there.
	root := t.TempDir()
	unit := filepath.Join(root, filepath.Base(file))
	runnable := strings.ReplaceAll(string(text), "/usr/local/bin/kevlard", "/bin/true")
	if err := os.WriteFile(unit, []byte(runnable), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(analyze, "verify", "--man=no", "--recursive-errors=no", unit).CombinedOutput()
	if err != nil || strings.Contains(string(out), filepath.Base(file)+":") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	if out, err = exec.Command(analyze, "security", "--no-pager", "--offline=true", "--threshold=40", unit).CombinedOutput(); err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}
