package systemd

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// TestRing installs the deb on four hosts and a gateway and lives through what admins do
// with them. Each part begins with a ring that serves, so parts can be read alone.
func TestRing(t *testing.T) {
	var hosts []*host
	addrs := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"}
	for i := range addrs {
		hosts = append(hosts, newHost(t, fmt.Sprintf("h%d", i+1), i+1))
	}
	gateway := newHost(t, "gw", 9)
	all := append(slices.Clone(hosts), gateway)
	part := func(name string, f func()) {
		t.Run(name, func(t *testing.T) {
			for _, h := range all {
				h.t = t
			}
			f()
		})
		for _, h := range all {
			h.t = t
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	unit := func(h *host) string {
		if h == gateway {
			return "kevlard-gateway"
		}
		return "kevlard"
	}
	served := func() {
		for _, h := range all {
			h.awaitRing(len(all))
			h.awaitReady()
		}
	}
	const prompt = "Once upon a time there was a little fox who"
	var want string

	part("Install", func() {
		for _, h := range all {
			h.boot()
			role := "host"
			if h == gateway {
				role = "gateway"
			}
			h.install(role, addrs...)
			if got := h.show(unit(h), "ActiveState") + " " + h.show(unit(h), "UnitFileState"); got != "inactive disabled" {
				h.fail("after the first installation it is %s, want inactive disabled", got)
			}
			if got := h.run("stat", "-c", "%U:%G %a", "/etc/kevlard", config); got != "root:kevlard 750\nroot:kevlard 640" {
				h.fail("files of the package: %s", got)
			}
		}
		for _, h := range all {
			h.run("systemctl", "enable", "--now", unit(h))
		}
		served()
		want = gateway.generate(prompt, 64)
		deb, err := os.Stat(os.Getenv("SUITE_DEBS") + "/kevlard_1.0.0-1_amd64.deb")
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("MEASURED deb: %.1f MB", float64(deb.Size())/1e6)
		for _, h := range all {
			began, ready := h.number("ExecMainStartTimestampMonotonic", unit(h)), h.number("ActiveEnterTimestampMonotonic", unit(h))
			t.Logf("MEASURED %s: READY after %d ms; RSS idle %s", h.name, (ready-began)/1000, h.rss(unit(h)))
		}
	})

	part("UnprivilegedUser", func() {
		for _, h := range all {
			pids := append([]int{h.self().PID}, enginePIDs(h)...)
			for _, pid := range pids {
				status := h.run("cat", fmt.Sprintf("/proc/%d/status", pid))
				if user := h.run("stat", "-c", "%U", fmt.Sprintf("/proc/%d", pid)); user != "kevlard" || !strings.Contains(status, "CapEff:\t0000000000000000") || !strings.Contains(status, "NoNewPrivs:\t1") {
					h.fail("process %d is %s's:\n%s", pid, user, status)
				}
			}
			if got := h.run("stat", "-c", "%U %a", "/run/kevlard/kevlard.sock", "/var/lib/kevlard"); got != "kevlard 600\nkevlard 700" {
				h.fail("socket and state: %s", got)
			}
		}
		// The gateway has no devices, the hosts do.
		if out, err := gateway.try("nsenter", "-m", "-t", strconv.Itoa(gateway.self().PID), "ls", "/dev/net", "/dev/fuse"); err == nil {
			gateway.fail("it sees devices: %s", out)
		}
	})

	part("JournalIsReadable", func() {
		for _, h := range all {
			lines := strings.Split(h.run("journalctl", "--no-pager", "-o", "json", "--output-fields=MESSAGE,PRIORITY", "-u", unit(h)), "\n")
			for _, line := range lines {
				var entry struct {
					Message  any    `json:"MESSAGE"`
					Priority string `json:"PRIORITY"`
				}
				if err := json.Unmarshal([]byte(line), &entry); err != nil {
					h.fail("journal: %v: %s", err, line)
				}
				text, ok := entry.Message.(string)
				level, _, leveled := strings.Cut(strings.TrimPrefix(text, "level="), " ")
				wants := map[string]string{"DEBUG": "7", "INFO": "6", "WARN": "4", "ERROR": "3"}[level]
				if !ok || strings.HasPrefix(text, "<") || strings.Contains(text, "time=") || leveled && wants != "" && wants != entry.Priority {
					h.fail("a line that is not readable, or of another priority: %s", line)
				}
			}
		}
	})

	part("StopUnderStreams", func() { // K74
		texts := gateway.streams(20, prompt, 300)
		gateway.await("20 sessions run", func() bool { return gateway.sessions() == 20 })
		victim := hosts[0]
		if n := gateway.routed(victim.name); n == 0 {
			gateway.fail("no session runs through %s", victim.name)
		} else {
			t.Logf("%d of 20 streams run through the host that stops", n)
		}
		victim.run("systemctl", "stop", "kevlard")
		if got := victim.show("kevlard", "Result") + " " + victim.show("kevlard", "ExecMainStatus"); got != "success 0" {
			victim.fail("stop: %s", got)
		}
		if out, err := victim.try("pgrep", "-u", "kevlard"); err == nil {
			victim.fail("processes are left: %s", out)
		}
		results := texts()
		unbroken := gateway.generate(prompt, 300)
		for i, text := range results {
			if text != unbroken {
				gateway.fail("stream %d is cut or wrong: %d bytes of %d:\n%s", i, len(text), len(unbroken), text)
			}
		}
		victim.run("systemctl", "start", "kevlard")
		served()
	})

	part("KilledDaemon", func() { // K76
		h := hosts[1]
		for i := range 5 {
			h.await("it has engines", func() bool { return len(enginePIDs(h)) > 0 })
			main, engines := h.self().PID, enginePIDs(h)
			h.run("kill", "-KILL", strconv.Itoa(main))
			h.await("systemd starts it again", func() bool {
				pid := h.show("kevlard", "MainPID")
				return pid != "0" && pid != strconv.Itoa(main) && h.show("kevlard", "ActiveState") == "active"
			})
			for _, pid := range engines {
				if _, err := os.Stat(fmt.Sprintf("%s/proc/%d", h.procRoot(), pid)); err == nil && !reused(h, pid) {
					h.fail("kill %d: engine %d of the dead daemon is left", i, pid)
				}
			}
			served()
			if got := gateway.generate(prompt, 64); got != want {
				gateway.fail("after kill %d it answers %q, before %q", i, got, want)
			}
		}
		t.Logf("5 kills, %s restarts", h.show("kevlard", "NRestarts"))
	})

	part("Reload", func() {
		h := gateway
		main := h.show(unit(h), "MainPID")
		h.edit(`level = "info"`, `level = "debug"`)
		h.run("systemctl", "reload", unit(h))
		h.await("the log level is taken over", func() bool { return strings.Contains(h.journal("-u", unit(h)), "configuration reloaded") })
		h.edit("[log]", "nonsense = 1\n[log]")
		h.run("systemctl", "reload", unit(h))
		h.await("a bad file is refused", func() bool {
			return strings.Contains(h.journal("-p", "err", "-u", unit(h)), "configuration not reloaded")
		})
		h.edit("nonsense = 1\n", "")
		h.edit(`level = "debug"`, `level = "info"`)
		h.run("systemctl", "reload", unit(h))
		if got := h.show(unit(h), "MainPID"); got != main {
			h.fail("it was restarted")
		}
		served()
	})

	part("Upgrade", func() {
		for _, h := range []*host{hosts[2], gateway} {
			before, text := h.self(), h.run("cat", config)
			h.deb("1.0.1")
			h.await("the new one runs", func() bool { return h.show(unit(h), "ActiveState") == "active" })
			served()
			after := h.self()
			if after.ID != before.ID || after.Boot == before.Boot {
				h.fail("upgrade: it was %v, is %v: want the same identity and another boot", before, after)
			}
			if got := h.run("cat", config); got != text {
				h.fail("the configuration changed")
			}
		}
		if got := gateway.generate(prompt, 64); got != want {
			gateway.fail("it answers %q, before %q", got, want)
		}
	})

	part("RebootOfAll", func() { // K25
		// Only those remembered can bring them together.
		for _, h := range all {
			text, err := os.ReadFile(h.root + config)
			h.must(err)
			i, j := strings.Index(string(text), "join = ["), strings.Index(string(text), "advertise")
			h.configure(string(text[:i]) + "join = []\n" + string(text[j:]))
		}
		var wg sync.WaitGroup
		for _, h := range all {
			wg.Go(h.powerOff)
		}
		wg.Wait()
		for _, h := range all {
			h.start()
		}
		served()
		if got := gateway.generate(prompt, 64); got != want {
			gateway.fail("it answers %q, before %q", got, want)
		}
	})

	part("HundredSessions", func() {
		texts := gateway.streams(100, prompt, 200)
		gateway.await("100 sessions", func() bool { return gateway.sessions() >= 100 })
		t.Logf("MEASURED with 100 sessions: RSS of the gateway %s, of a host %s", gateway.rss(unit(gateway)), hosts[0].rss("kevlard"))
		for i, text := range texts() {
			if text == "" {
				gateway.fail("stream %d has no text", i)
			}
		}
	})

	part("Remove", func() {
		h := hosts[3]
		h.run("dpkg", "-r", "kevlard")
		if out, err := h.try("pgrep", "-u", "kevlard"); err == nil {
			h.fail("processes are left: %s", out)
		}
		h.run("test", "-e", "/etc/kevlard/secret", "-a", "-e", config, "-a", "-d", "/var/lib/kevlard/models")
		h.run("dpkg", "-P", "kevlard")
		if out, err := h.try("ls", "/etc/kevlard", "/var/lib/kevlard"); err == nil {
			h.fail("purge left %s", out)
		}
	})
}
