package systemd

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rpm runs rpm on the host and returns what it says. The host is a Debian: the packages
// that this one asks for are there, but not in rpm's database (--nodeps).
func (h *host) rpm(args ...string) string {
	h.t.Helper()
	return h.said(h.run(append([]string{"rpm"}, args...)...))
}

// said drops Debian's warning that rpm is not for it.
func (h *host) said(out string) string {
	var lines []string
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "rpm: RPM should not be used directly") && !strings.HasPrefix(line, "rpm: However assuming") {
			lines = append(lines, line)
		}
	}
	return strings.TrimSpace(strings.Join(lines, ""))
}

func rpmName(version string) string { return fmt.Sprintf("kevlard-%s-1.x86_64.rpm", version) }

// scriptlet finds in the output of rpm -vv that a scriptlet was run, and of which version.
var scriptlet = regexp.MustCompile(`(%\w+)\(kevlard-([0-9.]+)-1\.x86_64\): execv`)

// states returns what systemd thinks of the units of the package, in their order.
func (h *host) states() []string {
	h.t.Helper()
	var states []string
	for _, unit := range []string{"kevlard.service", "kevlard-gateway.service", "kevlard-api.socket"} {
		states = append(states, h.show(unit, "ActiveState")+" "+h.show(unit, "UnitFileState"))
	}
	return states
}

// TestRPM lives through what admins do with the rpm, on a Debian with rpm: an EL host was
// not to be had. dnf, SELinux and an EL's own systemd have no part in it.
func TestRPM(t *testing.T) {
	h := newHostWith(t, "rpm", "el", 29)
	off := []string{"inactive disabled", "inactive disabled", "inactive disabled"}
	wantStates := func(when string, want ...string) {
		t.Helper()
		if got := h.states(); !slices.Equal(got, want) {
			h.fail("%s kevlard, gateway and socket are %q, want %q", when, got, want)
		}
	}
	wantFiles := func() {
		t.Helper()
		got := h.run("stat", "-c", "%U:%G %a %n", "/etc/kevlard", config, "/var/lib/kevlard", "/var/lib/kevlard/models", "/usr/bin/kevlard")
		const want = "root:kevlard 750 /etc/kevlard\nroot:kevlard 640 " + config +
			"\nkevlard:kevlard 700 /var/lib/kevlard\nkevlard:kevlard 755 /var/lib/kevlard/models\nroot:root 755 /usr/bin/kevlard"
		if got != want {
			h.fail("files:\n%s\nwant\n%s", got, want)
		}
	}

	// An image is made in a chroot: no manager runs, and nothing may need one.
	image := newHostWith(t, "rpm", "image", 33)
	sh(t, "mount", "-t", "proc", "proc", image.root+"/proc")
	path := image.fetch(rpmName("1.0.0"))
	out, err := exec.Command("chroot", image.root, "rpm", "-i", "--nodeps", path).CombinedOutput()
	sh(t, "umount", image.root+"/proc")
	if said := image.said(string(out)); err != nil || strings.Contains(said, "kevlard:") {
		t.Fatalf("in a chroot: %v: %s", err, said)
	}
	image.boot()
	if got := image.states(); !slices.Equal(got, off) {
		image.fail("after the boot of the image its units are %q", got)
	}
	image.run("getent", "passwd", "kevlard")
	image.run("test", "-d", "/var/lib/kevlard/models")
	image.powerOff()

	h.boot()
	if out, err := h.try("getent", "passwd", "kevlard"); err == nil {
		h.fail("the user is there before the package: %s", out)
	}
	t.Logf("rpm -i: %s", h.rpm("-i", "--nodeps", h.fetch(rpmName("1.0.0"))))
	if got := h.run("getent", "passwd", "kevlard"); !regexp.MustCompile(`^kevlard:[^:]*:(\d{3}):(\d{3}):kevlard:/var/lib/kevlard:\S*/nologin$`).MatchString(got) {
		h.fail("the user: %s", got)
	}
	wantFiles()
	wantStates("after the installation", off...)
	for _, unit := range []string{"kevlard.service", "kevlard-gateway.service", "kevlard-api.socket"} {
		if got := h.show(unit, "LoadState") + " " + h.show(unit, "NeedDaemonReload"); got != "loaded no" {
			h.fail("%s is %s", unit, got)
		}
	}
	if out := h.run("find", "/etc/systemd/system", "-lname", "*kevlard*"); out != "" {
		h.fail("units are linked: %s", out)
	}
	if out, err := h.try("pgrep", "-u", "kevlard"); err == nil {
		h.fail("processes run: %s", out)
	}
	if got := h.rpm("-q", "--qf", "[%{FILEFLAGS:fflags} %{FILENAMES}\n]", "kevlard"); !strings.Contains(got, "cn "+config) {
		h.fail("%s is not %%config(noreplace):\n%s", config, got)
	}
	if got := h.rpm("-V", "--nodeps", "kevlard"); got != "" {
		h.fail("rpm -V after the installation: %s", got)
	}

	h.setUp("host", h.addr)
	h.run("systemctl", "start", "kevlard")
	h.awaitReady()
	h.run("curl", "-sSf", "--max-time", "60", "http://127.0.0.1:8080/readyz")
	t.Logf("status: %s", h.run("kevlard", "status", "--check"))
	const prompt = "Once upon a time"
	want, before, edited := h.generate(prompt, 32), h.self(), h.run("cat", config)

	// As the deb's: what runs is restarted by the new one, and nothing is enabled.
	out2 := h.rpm("-Uvv", "--nodeps", h.fetch(rpmName("1.0.1")))
	var order []string
	for _, m := range scriptlet.FindAllStringSubmatch(out2, -1) {
		order = append(order, m[1]+" "+m[2])
	}
	if want := []string{"%prein 1.0.1", "%post 1.0.1", "%preun 1.0.0", "%postun 1.0.0"}; !slices.Equal(order, want) {
		h.fail("scriptlets ran in the order %q, want %q:\n%s", order, want, out2)
	}
	h.await("the new one runs", func() bool { return h.show("kevlard", "ActiveState") == "active" })
	h.awaitReady()
	wantStates("after the upgrade", "active disabled", "inactive disabled", "inactive disabled")
	after := h.self()
	if after.ID != before.ID || after.Boot == before.Boot {
		h.fail("upgrade: it was %v, is %v: want the same identity and another boot", before, after)
	}
	if exe := h.run("readlink", "/proc/"+h.show("kevlard", "MainPID")+"/exe"); exe != "/usr/bin/kevlard" {
		h.fail("the old binary runs: %s", exe)
	}
	if got := h.run("cat", config); got != edited {
		h.fail("the configuration changed to:\n%s", got)
	}
	if got := h.run("tail", "-1", config+".rpmnew"); got != "# 1.0.1" {
		h.fail("the new package's configuration is not beside it, but: %s", got)
	}
	wantFiles()
	if got := h.generate(prompt, 32); got != want {
		h.fail("it answers %q, before %q", got, want)
	}

	// What does not run is not started, on the way back either.
	h.run("systemctl", "stop", "kevlard")
	h.rpm("-U", "--nodeps", "--oldpackage", h.fetch(rpmName("1.0.0")))
	wantStates("after a downgrade while stopped", off...)

	h.run("systemctl", "enable", "kevlard", "kevlard-api.socket")
	h.run("systemctl", "start", "kevlard-api.socket") // before the service, which would have the port
	h.run("systemctl", "start", "kevlard")
	h.awaitReady()
	t.Logf("rpm -e: %s", h.rpm("-e", "kevlard"))
	if out, err := h.try("pgrep", "-u", "kevlard"); err == nil {
		h.fail("processes are left: %s", out)
	}
	for _, unit := range []string{"kevlard.service", "kevlard-gateway.service", "kevlard-api.socket"} {
		if got := h.show(unit, "LoadState"); got != "not-found" {
			h.fail("%s is %s", unit, got)
		}
	}
	if out := h.run("find", "/usr", "/run", "/etc/systemd", "-name", "*kevlard*"); out != "" {
		h.fail("erasing left %s", out)
	}
	if got := h.run("sh", "-c", "ls /etc/kevlard; ls -d /var/lib/kevlard/models/*; getent passwd kevlard | cut -d: -f1"); got !=
		"kevlard.toml.rpmnew\nkevlard.toml.rpmsave\nsecret\n/var/lib/kevlard/models/fairy-7m-q8_0.gguf\nkevlard" {
		h.fail("what is kept:\n%s", got)
	}
	if got := h.run("cat", config+".rpmsave"); got != edited {
		h.fail("the configuration is kept as:\n%s", got)
	}

	// Installed again, with its configuration back, it is the node that it was.
	h.rpm("-i", "--nodeps", h.fetch(rpmName("1.0.1")))
	wantStates("after another installation", off...)
	h.run("mv", config+".rpmsave", config)
	wantFiles()
	h.run("systemctl", "start", "kevlard")
	h.awaitReady()
	if got := h.self(); got.ID != before.ID {
		h.fail("it is %v, was %v", got, before)
	}
	if got := h.generate(prompt, 32); got != want {
		h.fail("it answers %q, before %q", got, want)
	}
}
