package systemd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is how long anything may take. Nothing is judged by it but a hang: the
// machine may be slow and busy.
const patience = 5 * time.Minute

// sigPowerOff is SIGRTMIN+4, at which systemd starts poweroff.target.
const sigPowerOff = 34 + 4

// host is a container that boots systemd. Its files outlive a reboot, not the test.
type host struct {
	t      *testing.T
	name   string
	addr   string // in 10.0.0.0/24
	root   string // its files, while it is mounted
	dir    string
	nspawn *exec.Cmd
	ended  chan struct{}
	leader int // pid of its init
}

// newHost makes a host with a link to the bridge, which is not booted yet.
func newHost(t *testing.T, name string, number int) *host {
	t.Helper()
	return newHostWith(t, "", name, number)
}

// newHostWith makes one whose root file system has Debian's packages of that name, "rpm"
// or "slurm", as scripts/systemd-suite has made it.
func newHostWith(t *testing.T, packages, name string, number int) *host {
	t.Helper()
	if os.Getenv("KEVLARD_SYSTEMD_SUITE") == "" {
		t.Skip("needs hosts with a systemd: run make test-systemd as root")
	}
	h := &host{t: t, name: name, addr: fmt.Sprintf("10.0.0.%d", number), dir: filepath.Join(os.Getenv("SUITE_BASE"), name)}
	h.root = h.dir + "/root"
	lower := os.Getenv("SUITE_ROOTFS")
	if packages != "" {
		lower += "-" + packages
	}
	for _, d := range []string{"upper", "work", "root"} {
		h.must(os.MkdirAll(filepath.Join(h.dir, d), 0o755))
	}
	sh(t, "mount", "-t", "overlay", "overlay", "-o", fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", lower, h.dir, h.dir), h.root)
	sh(t, "ip", "netns", "add", name)
	t.Cleanup(func() {
		h.powerOff()
		sh(t, "ip", "netns", "del", name)
		sh(t, "umount", h.root)
		h.must(os.RemoveAll(h.dir))
	})
	h.write("/etc/hostname", name+"\n", 0o644)
	h.write("/etc/machine-id", strings.Repeat(strconv.Itoa(number%10), 32)+"\n", 0o644)
	h.write("/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 "+name+"\n", 0o644)
	h.link()
	return h
}

// link gives the host eth0, with its address.
func (h *host) link() {
	h.t.Helper()
	sh(h.t, "ip", "link", "add", h.name, "type", "veth", "peer", "name", "eth0", "netns", h.name)
	sh(h.t, "ip", "link", "set", h.name, "master", "ring0", "up")
	sh(h.t, "ip", "-n", h.name, "link", "set", "lo", "up")
	sh(h.t, "ip", "-n", h.name, "addr", "add", h.addr+"/24", "dev", "eth0")
	sh(h.t, "ip", "-n", h.name, "link", "set", "eth0", "up")
}

// unlink takes eth0 away.
func (h *host) unlink() { sh(h.t, "ip", "link", "del", h.name) }

// boot returns when systemd has come up.
func (h *host) boot() {
	h.t.Helper()
	h.start()
	h.await("it has booted", func() bool {
		out, _ := h.try("systemctl", "is-system-running")
		return strings.Contains(out, "running") || strings.Contains(out, "degraded")
	})
}

// start starts the host and returns when its init runs.
func (h *host) start() {
	h.t.Helper()
	group := filepath.Join(os.Getenv("SUITE_CGROUP"), h.name)
	h.must(os.MkdirAll(group, 0o755))
	console, err := os.Create(h.dir + "/console")
	h.must(err)
	defer console.Close()
	h.nspawn = exec.Command("/bin/sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, group,
		"systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--machine="+h.name, "--directory="+h.root, "--console=pipe",
		"--network-namespace-path=/run/netns/"+h.name, "--resolv-conf=off", "--timezone=off", "--link-journal=no", "--boot")
	h.nspawn.Env = append(os.Environ(), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1")
	h.nspawn.Stdout, h.nspawn.Stderr = console, console
	h.must(h.nspawn.Start())
	h.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // how it ends is told by what the test sees
		close(ended)
	}(h.nspawn, h.ended)
	h.leader = 0
	h.await("its init runs", func() bool {
		out, err := exec.Command("pgrep", "-P", strconv.Itoa(h.nspawn.Process.Pid)).Output()
		for _, field := range strings.Fields(string(out)) {
			if comm, _ := os.ReadFile("/proc/" + field + "/comm"); strings.TrimSpace(string(comm)) == "systemd" {
				h.leader, err = strconv.Atoi(field)
			}
		}
		return err == nil && h.leader != 0
	})
}

// powerOff shuts down the host as its button does, and returns when it is off.
func (h *host) powerOff() {
	if h.nspawn == nil {
		return
	}
	if h.leader == 0 { // it did not come up
		h.powerCut()
		return
	}
	_ = syscall.Kill(h.leader, syscall.Signal(sigPowerOff)) // it may be gone already
	select {
	case <-h.ended:
	case <-time.After(patience):
		h.t.Errorf("%s does not shut down", h.name)
		h.powerCut()
	}
	h.nspawn = nil
}

// powerCut stops the host at once.
func (h *host) powerCut() {
	if h.leader != 0 { // 0 would be all of us
		_ = syscall.Kill(h.leader, syscall.SIGKILL)
	} else {
		_ = h.nspawn.Process.Kill()
	}
	<-h.ended
	h.nspawn = nil
}

// try runs a command on the host; both outputs are returned together.
func (h *host) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(h.leader), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd", "--"}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"}
	out, err := cmd.CombinedOutput()
	return string(bytes.TrimRight(out, "\n")), err
}

// run runs a command on the host, which must succeed.
func (h *host) run(args ...string) string {
	h.t.Helper()
	out, err := h.try(args...)
	if err != nil {
		h.fail("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// show returns a property of a unit.
func (h *host) show(unit, property string) string {
	h.t.Helper()
	return h.run("systemctl", "show", "-P", property, unit)
}

func (h *host) journal(args ...string) string {
	h.t.Helper()
	return h.run(append([]string{"journalctl", "--no-pager", "-o", "cat"}, args...)...)
}

// await polls until the condition holds.
func (h *host) await(what string, f func() bool) {
	h.t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(100 * time.Millisecond) {
		select {
		case <-h.ended:
			h.fail("the host ended while waiting until %s", what)
		default:
		}
		if time.Now().After(end) {
			h.fail("not within %v: %s", patience, what)
		}
	}
}

// fail ends the test with what the host says.
func (h *host) fail(format string, args ...any) {
	h.t.Helper()
	h.t.Errorf("%s: %s", h.name, fmt.Sprintf(format, args...))
	if h.leader != 0 {
		out, _ := h.try("sh", "-c", "systemctl --no-pager --full status 'kevlard*' | head -40; journalctl --no-pager -n 40 -u 'kevlard*'; kevlard status; kevlard members")
		h.t.Log(out)
	}
	if console, err := os.ReadFile(h.dir + "/console"); err == nil {
		h.t.Logf("the end of its console:\n%s", console[max(0, len(console)-2000):])
	}
	h.t.FailNow()
}

// write writes a file of the host.
func (h *host) write(path, text string, mode os.FileMode) {
	h.t.Helper()
	h.must(os.MkdirAll(filepath.Dir(h.root+path), 0o755))
	h.must(os.WriteFile(h.root+path, []byte(text), mode))
	h.must(os.Chmod(h.root+path, mode))
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatalf("%s: %v", h.name, err)
	}
}

// sh runs a command on this machine.
func sh(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
