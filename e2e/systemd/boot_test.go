package systemd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// alone makes a host whose ring is itself, with kevlard enabled and serving.
func alone(t *testing.T, name string, number int) *host {
	t.Helper()
	h := newHost(t, name, number)
	h.boot()
	h.install("host", h.addr)
	h.run("systemctl", "enable", "--now", "kevlard")
	h.awaitReady()
	return h
}

// TestColdBoots boots a host ten times, half of them after a power cut: kevlard is active
// and serves each time (K78).
func TestColdBoots(t *testing.T) {
	h := alone(t, "cold", 21)
	want := h.generate("Once upon a time", 32)
	for i := range 10 {
		if i%2 == 0 {
			h.powerCut()
		} else {
			h.powerOff()
		}
		h.boot()
		h.await("kevlard is active", func() bool { return h.show("kevlard", "ActiveState") == "active" })
		h.awaitReady()
		if got := h.generate("Once upon a time", 32); got != want {
			h.fail("boot %d: it answers %q, before %q", i, got, want)
		}
	}
}

// TestNetworkComesLate boots a host whose interface is not there: kevlard tries again
// until it is, says why meanwhile, and then joins.
func TestNetworkComesLate(t *testing.T) {
	other := alone(t, "other", 22)
	late := newHost(t, "late", 23)
	late.boot()
	late.install("host", other.addr, late.addr)
	late.run("systemctl", "enable", "kevlard")
	late.powerOff()
	late.unlink()
	late.boot()
	late.await("it was started again and again, and says why", func() bool {
		return late.number("NRestarts", "kevlard") >= 3 && strings.Contains(late.journal("-p", "err", "-u", "kevlard"), "10.0.0.0/24")
	})
	t.Logf("the journal says: %s", lastLine(late.journal("-p", "err", "-u", "kevlard", "-n", "1", "-t", "kevlard")))
	if got := late.show("kevlard", "ActiveState"); got == "failed" {
		late.fail("it has given up")
	}
	late.link()
	for _, h := range []*host{late, other} {
		h.awaitRing(2)
		h.awaitReady()
	}
}

// TestDriverComesLate boots a host whose GPU is not there: the daemon runs and waits, is
// not ready, says why, and computes nothing on the CPU. When it comes, the daemon serves, and
// nobody need restart it (K77). Driver and device are a stand-in's: a backend library that
// says that it has a GPU.
func TestDriverComesLate(t *testing.T) {
	h := newHost(t, "driver", 24)
	h.boot()
	h.install("host", h.addr)
	h.edit("[engine]\n", "[engine]\ndevices = [\"cuda:0\"]\nbackend_dir = \"/opt/kevlard\"\n")
	h.run("systemctl", "enable", "kevlard")
	h.powerOff()
	h.boot()
	h.await("kevlard is active", func() bool { return h.show("kevlard", "ActiveState") == "active" })
	const reason = "[engine] devices asks for cuda:0"
	h.await("it says what it waits for", func() bool {
		out, _ := h.try("kevlard", "status")
		return strings.Contains(out, reason)
	})
	out, err := h.try("kevlard", "status", "--check")
	if err == nil {
		h.fail("it is ready without its device: %s", out)
	}
	if journal := h.journal("-u", "kevlard"); !strings.Contains(journal, reason) {
		h.fail("the journal does not name the device:\n%s", journal)
	}
	t.Logf("status --check: %s", out)
	answer, _ := h.try("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "280", "http://127.0.0.1:8080/v1/completions",
		"-H", "Content-Type: application/json", "-d", `{"model":"fairy","prompt":"Once","max_tokens":4}`)
	if answer != "503" && answer != "404" {
		h.fail("a request is answered %s, want 503 or 404 (no such model here)", answer)
	}
	for _, e := range h.self().Engines {
		h.fail("it has an engine: %v", e)
	}
	library, err := os.ReadFile(filepath.Join(os.Getenv("SUITE_DEBS"), "libggml-cuda.so"))
	h.must(err)
	h.run("mkdir", "/opt/kevlard")
	h.write("/opt/kevlard/libggml-cuda.so", string(library), 0o755)
	main := h.show("kevlard", "MainPID")
	h.awaitReady()
	engines := h.self().Engines
	if len(engines) == 0 {
		h.fail("no engine runs")
	}
	for _, e := range engines {
		if e.Device != "cuda:0" {
			h.fail("an engine computes on %s, want cuda:0", e.Device)
		}
	}
	if text := h.generate("Once upon a time", 8); text == "" {
		h.fail("it says nothing")
	}
	if pid := h.show("kevlard", "MainPID"); pid != main {
		h.fail("the daemon was started again: %s after %s", pid, main)
	}
}

// TestWatchdog stops the daemon as a loop that is stuck would: systemd kills and replaces
// it, and its engine.
func TestWatchdog(t *testing.T) {
	h := alone(t, "dog", 25)
	main, engines := h.show("kevlard", "MainPID"), enginePIDs(h)
	h.run("kill", "-STOP", main)
	h.await("the daemon is replaced", func() bool {
		pid := h.show("kevlard", "MainPID")
		return pid != "0" && pid != main && h.show("kevlard", "ActiveState") == "active"
	})
	if !strings.Contains(h.run("journalctl", "--no-pager", "-u", "kevlard"), "Watchdog timeout") {
		h.fail("it was not the watchdog")
	}
	h.awaitReady()
	for _, pid := range engines {
		if _, err := os.Stat(fmt.Sprintf("%s/proc/%d", h.procRoot(), pid)); err == nil && !reused(h, pid) {
			h.fail("engine %d of the hanging daemon is left", pid)
		}
	}
}

// TestMemlock takes LimitMEMLOCK out of the unit: doctor says so, and does not with the
// unit as it is shipped, where this machine lets root raise limits at all (K59).
func TestMemlock(t *testing.T) {
	h := alone(t, "lock", 26)
	limit := func() string {
		for line := range strings.Lines(h.run("cat", "/proc/"+h.show("kevlard", "MainPID")+"/limits")) {
			if strings.HasPrefix(line, "Max locked memory") {
				return strings.Fields(line)[3]
			}
		}
		return ""
	}
	if got := h.show("kevlard", "LimitMEMLOCK"); got != "infinity" {
		h.fail("LimitMEMLOCK of the unit is %s", got)
	}
	if got := limit(); got == "unlimited" {
		if out, _ := h.try("kevlard", "doctor"); strings.Contains(memlockLine(out), "warn") || strings.Contains(memlockLine(out), "fail") {
			h.fail("doctor complains of an unlimited daemon: %s", out)
		}
	} else {
		t.Logf("NOT CHECKED: that the shipped unit has no limit: on this machine not even root may raise them (%s)", got)
	}
	h.write("/etc/systemd/system/kevlard.service.d/memlock.conf", "[Service]\nLimitMEMLOCK=64K\n", 0o644)
	h.run("systemctl", "daemon-reload")
	h.run("systemctl", "restart", "kevlard")
	h.awaitReady()
	if got := limit(); got != "65536" {
		h.fail("its limit is %s", got)
	}
	out, _ := h.try("kevlard", "doctor")
	if line := memlockLine(out); !strings.HasPrefix(line, "warn") || !strings.Contains(line, "the daemon may lock 64.0 KiB of memory") {
		h.fail("doctor does not complain of 64 KiB:\n%s", out)
	}
	t.Logf("doctor: %s", memlockLine(out))
}

// TestSocketActivation has systemd open the API's port: a client that comes while the
// daemon is restarted waits and is served.
func TestSocketActivation(t *testing.T) {
	h := alone(t, "sock", 27)
	h.run("systemctl", "stop", "kevlard")
	h.run("systemctl", "enable", "--now", "kevlard-api.socket")
	h.run("curl", "-sf", "--max-time", "280", "http://127.0.0.1:8080/healthz") // starts it
	h.await("it is active", func() bool { return h.show("kevlard", "ActiveState") == "active" })
	h.awaitReady()
	want := h.generate("Once upon a time", 32)
	h.run("systemctl", "restart", "--no-block", "kevlard")
	h.run("curl", "-sf", "--max-time", "280", "http://127.0.0.1:8080/healthz") // never refused
	h.await("the restart is done", func() bool { return h.show("kevlard", "ActiveState") == "active" })
	h.awaitReady()
	if got := h.generate("Once upon a time", 32); got != want {
		h.fail("it answers %q, before %q", got, want)
	}
}

// TestBareHost runs the binary on a root file system without systemd's manager, libibverbs
// and NVML: it starts, doctor says what is missing, and it serves on CPU and TCP.
func TestBareHost(t *testing.T) {
	h := newHost(t, "bare", 28)
	for _, lib := range []string{"libibverbs", "libnvidia-ml", "libcuda"} {
		if out, _ := exec.Command("find", h.root+"/usr/lib", "-name", lib+"*").Output(); len(out) > 0 {
			t.Fatalf("the root file system has %s", out)
		}
	}
	binary, err := os.ReadFile(os.Getenv("SUITE_BINARY"))
	h.must(err)
	model, err := os.ReadFile(os.Getenv("SUITE_MODEL"))
	h.must(err)
	h.write("/kevlard", string(binary), 0o755)
	h.write("/models/fairy-7m-q8_0.gguf", string(model), 0o644)
	h.write("/secret", secret, 0o600)
	flags := []string{"--node-name", "bare", "--ring-secret-file", "/secret", "--node-data-dir", "/data", "--models-dirs", "/models", "--models-assign", "fairy:0-8", "--control", "/sock", "--ring-advertise", h.addr}
	chroot := func(args ...string) *exec.Cmd {
		cmd := exec.Command("ip", append([]string{"netns", "exec", h.name, "chroot", h.root, "/kevlard"}, args...)...)
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"} // chroot is in one of them
		return cmd
	}
	h.must(os.MkdirAll(h.root+"/proc", 0o755))
	sh(t, "mount", "-t", "proc", "proc", h.root+"/proc")
	sh(t, "mount", "--bind", "/dev", h.root+"/dev")
	t.Cleanup(func() { sh(t, "umount", h.root+"/proc", h.root+"/dev") })
	agent := chroot(append([]string{"agent"}, flags...)...)
	log, err := os.Create(h.dir + "/log")
	h.must(err)
	defer log.Close()
	agent.Stdout, agent.Stderr = log, log
	h.must(agent.Start())
	h.ended = make(chan struct{})
	go func() { _ = agent.Wait(); close(h.ended) }()
	defer func() {
		_ = agent.Process.Signal(os.Interrupt)
		<-h.ended
		if code := agent.ProcessState.ExitCode(); code != 0 {
			text, _ := os.ReadFile(h.dir + "/log")
			t.Errorf("the agent exits %d:\n%s", code, text)
		}
	}()
	h.await("it is ready", func() bool { return chroot("status", "--check", "--control", "/sock").Run() == nil })
	out, err := chroot("generate", "--control", "/sock", "--model", "fairy", "--max-tokens", "16", "Once upon a time").CombinedOutput()
	if err != nil || len(out) == 0 {
		t.Errorf("generate: %v: %s", err, out)
	}
	doctor, _ := chroot(append([]string{"doctor"}, flags...)...).CombinedOutput()
	t.Logf("doctor, exit code not judged:\n%s", doctor)
	version, _ := chroot("version").CombinedOutput()
	t.Logf("version:\n%s", version)
}

func memlockLine(doctor string) string {
	for line := range strings.Lines(doctor) {
		if strings.Contains(line, "memlock") || strings.Contains(line, "locked memory") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

func lastLine(text string) string {
	lines := strings.Split(text, "\n")
	return lines[len(lines)-1]
}
