package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/kevlard/kevlard/gpu"
	"github.com/kevlard/kevlard/membership"
)

// wellHost answers for a host where all is well.
func wellHost() probes {
	return probes{
		interfaces: func() ([]membership.Interface, error) {
			return []membership.Interface{{Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}}}, nil
		},
		listen: func(string, string) error { return nil },
		dial:   func(context.Context, string) error { return nil },
		gossip: func(string, []byte, netip.Addr) (pinger, error) {
			return pinger{
				func(context.Context, string, netip.AddrPort) error { return nil },
				func(context.Context, netip.AddrPort, string, netip.AddrPort) error { return nil },
			}, nil
		},
		modelFiles: func(dir string) ([]string, error) { return []string{dir + "/a.gguf"}, nil },
		header:     func(string) (string, error) { return "llama", nil },
		clock:      func() (time.Duration, bool, error) { return 3 * time.Millisecond, true, nil },
		limit: func(_, resource int) (uint64, error) {
			if resource == limitFiles {
				return 1 << 20, nil
			}
			return limitInfinity, nil
		},
		space:   func(string) (disk, error) { return wellDisk(), nil },
		secret:  func(string) ([]byte, error) { return make([]byte, secretBytes), nil },
		owner:   func(string) (string, error) { return "kevlard", nil },
		rdma:    func() (rdmaFacts, error) { return wellRDMA(), nil },
		gpus:    func() gpu.Host { return gpu.Host{NVML: gpu.ErrNoDriver} },
		visible: func() (string, bool) { return "", false },
		groups: func(int) (groupLimits, error) {
			return groupLimits{memory: 64 << 30, tasks: math.MaxInt64}, nil
		},
	}
}

func wellDisk() disk {
	return disk{free: 50 << 30, total: 100 << 30, inodes: 1 << 20, allInodes: 1 << 21}
}

// wellDoctor looks at that host, in a ring of three with its daemon.
func wellDoctor() *doctor {
	d := &doctor{cfg: config.Defaults(), probe: wellHost(), status: &report.Status{Node: "n1", PID: 7, Ready: true, Version: "0.1.0"}}
	d.cfg.Ring.SecretFile = "/etc/kevlard/secret"
	d.members = report.Members{Ring: "default", Self: "n1", Nodes: []report.Member{
		{Name: "n1", Addr: "10.0.0.1:7946", MeshAddr: "10.0.0.1:7947", State: "alive"},
		{Name: "n2", Addr: "10.0.0.2:7946", MeshAddr: "10.0.0.2:7947", BulkAddr: "10.0.0.2:7948", State: "alive"},
		{Name: "n3", Addr: "10.0.0.3:7946", MeshAddr: "10.0.0.3:7947", State: "left"},
	}}
	d.clocks = report.Clocks{Clocks: []report.Clock{{Node: "n2", OffsetMS: -2, WithinMS: 0.5}}}
	return d
}

// TestDoctorWell checks that a healthy host has nothing to fix, with a daemon and
// without.
func TestDoctorWell(t *testing.T) {
	with, without := wellDoctor(), wellDoctor()
	without.status, without.members, without.why = nil, report.Members{}, api.ErrNoDaemon
	for _, d := range []*doctor{with, without} {
		for _, f := range d.examine(t.Context()) {
			if f.Status != statusOK && f.Check != "daemon" || f.What == "" {
				t.Errorf("daemon %v: %+v", d.status != nil, f)
			}
		}
	}
	if f := with.checkPeers(t.Context()); len(f) != 1 || f[0].What != "n2: TCP to 10.0.0.2:7946, TCP to 10.0.0.2:7947, TCP to 10.0.0.2:7948, UDP both ways" {
		t.Errorf("peers: %+v", f)
	}
}

// TestDoctorFinds spoils one thing at a time.
func TestDoctorFinds(t *testing.T) {
	alone := func(d *doctor) { d.status, d.members, d.why = nil, report.Members{}, api.ErrNoDaemon }
	for _, c := range []struct {
		name         string
		spoil        func(*doctor)
		check        string
		status, what string // of the one finding of that check that is not ok
	}{
		{"no daemon", alone, "daemon", statusWarn, "none answers at : no peer can be tried"},
		{"daemon not ready", func(d *doctor) { d.status.Ready, d.status.Reason = false, "loading" }, "daemon", statusWarn, "n1 runs, pid 7, not ready: loading"},
		{"daemon broken", func(d *doctor) { alone(d); d.why = errors.New("EOF") }, "daemon", statusFail, "it was asked and did not answer as it should: EOF"},
		{"key of root", func(d *doctor) {
			alone(d)
			d.probe.owner = func(path string) (string, error) {
				if filepath.Base(path) == "node.key" {
					return "root", nil
				}
				return "kevlard", nil
			}
		}, "owner", statusFail, "/var/lib/kevlard/node.key belongs to root, and /var/lib/kevlard to kevlard, who can't read it"},
		{"secret of root", func(d *doctor) {
			alone(d)
			d.probe.owner = func(path string) (string, error) {
				if path == d.cfg.Ring.SecretFile {
					return "root", nil
				}
				return "kevlard", nil
			}
		}, "owner", statusFail, "/etc/kevlard/secret belongs to root, and /var/lib/kevlard to kevlard, who can't read it"},
		{"directory that can't be seen", func(d *doctor) {
			alone(d)
			d.probe.owner = func(path string) (string, error) {
				return "", &fs.PathError{Op: "stat", Path: path, Err: syscall.EACCES}
			}
		}, "owner", statusWarn, "stat /var/lib/kevlard: permission denied"},
		{"another configuration", func(d *doctor) { d.cfg.Ring.SecretFile = "" }, "secret", statusWarn, "the daemon has one, and ring.secret_file is not set here: it runs with another configuration than doctor was given, and no peer is tried over UDP"},
		{"no secret", func(d *doctor) { alone(d); d.probe.secret = readSecret; d.cfg.Ring.SecretFile = "" }, "secret", statusFail, "ring.secret_file is not set: every node of a ring needs the same secret"},
		{
			"secret of another user",
			func(d *doctor) {
				d.probe.secret = func(string) ([]byte, error) { return nil, usageError("read: %w", fs.ErrPermission) }
			},
			"secret", statusWarn, "/etc/kevlard/secret cannot be read by this user: no peer is tried over UDP",
		},
		{
			"two addresses",
			func(d *doctor) {
				alone(d)
				d.probe.interfaces = func() ([]membership.Interface, error) {
					return []membership.Interface{
						{Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}},
						{Name: "ib0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.1/24")}},
					}, nil
				}
			},
			"address", statusFail, "advertise: ",
		},
		{"port taken", func(d *doctor) {
			alone(d)
			d.probe.listen = func(network, addr string) error {
				if network == "udp" {
					return &net.OpError{Op: "listen", Err: syscall.EADDRINUSE}
				}
				return nil
			}
		}, "ports", statusFail, "UDP 0.0.0.0:7946 is taken"},
		{"foreign address", func(d *doctor) {
			alone(d)
			d.probe.listen = func(_, addr string) error {
				if strings.HasSuffix(addr, ":7947") {
					return syscall.EADDRNOTAVAIL
				}
				return nil
			}
		}, "ports", statusFail, "TCP 0.0.0.0:7947 is no address of this host"},
		{"privileged port", func(d *doctor) {
			alone(d)
			d.probe.listen = func(_, addr string) error {
				if strings.HasSuffix(addr, ":8080") {
					return syscall.EACCES
				}
				return nil
			}
		}, "ports", statusFail, "TCP 127.0.0.1:8080: permission denied"},
		{"TCP blocked", func(d *doctor) {
			d.probe.dial = func(_ context.Context, addr string) error {
				if addr == "10.0.0.2:7947" {
					return syscall.ECONNREFUSED
				}
				return nil
			}
		}, "peers", statusFail, "n2: TCP to 10.0.0.2:7947: connection refused"},
		{"UDP blocked there", func(d *doctor) {
			d.probe.gossip = func(string, []byte, netip.Addr) (pinger, error) {
				return pinger{ping: func(context.Context, string, netip.AddrPort) error { return errNoAnswer }}, nil
			}
		}, "peers", statusFail, "n2: UDP to 10.0.0.2:7946 and back: no answer"},
		{"UDP blocked here", func(d *doctor) {
			p, _ := d.probe.gossip("", nil, netip.Addr{})
			p.pingBy = func(context.Context, netip.AddrPort, string, netip.AddrPort) error { return errNoAnswer }
			d.probe.gossip = func(string, []byte, netip.Addr) (pinger, error) { return p, nil }
		}, "peers", statusFail, "n2: UDP from there to 10.0.0.1:7946: no answer"},
		{"dead peer", func(d *doctor) { d.members.Nodes[1].State = "dead" }, "peers", statusWarn, "n2 is dead and was not tried"},
		{"alone", func(d *doctor) { d.members.Nodes = d.members.Nodes[:1] }, "peers", statusWarn, "this node is alone in its ring"},
		{"not in its ring", func(d *doctor) { d.members.Self = "nobody" }, "peers", statusFail, "the daemon does not list itself in its ring"},
		{"bad model", func(d *doctor) {
			d.probe.header = func(path string) (string, error) { return "", errors.New("read model " + path + ": cut off") }
		}, "models", statusFail, "read model /var/lib/kevlard/models/a.gguf: cut off"},
		{"unserved model", func(d *doctor) {
			d.probe.header = func(path string) (string, error) { return "", fmt.Errorf("%s %w: odd", path, errNotServed) }
		}, "models", statusWarn, "/var/lib/kevlard/models/a.gguf is not served: odd"},
		{"unreadable model", func(d *doctor) {
			d.probe.header = func(path string) (string, error) {
				return "", &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission}
			}
		}, "models", statusFail, "open /var/lib/kevlard/models/a.gguf: permission denied"},
		{"no models", func(d *doctor) { d.probe.modelFiles = func(string) ([]string, error) { return nil, nil } }, "models", statusWarn, "there are none in [/var/lib/kevlard/models]"},
		{"no model directory", func(d *doctor) {
			d.probe.modelFiles = func(dir string) ([]string, error) {
				return nil, &fs.PathError{Op: "open", Path: dir, Err: fs.ErrNotExist}
			}
		}, "models", statusWarn, "open /var/lib/kevlard/models: file does not exist"},
		{"assigned model gone", func(d *doctor) {
			d.cfg.Models.Assign = []config.Assign{{Model: "/m/b.gguf"}, {Model: "by-name"}}
			d.probe.header = func(path string) (string, error) {
				if path == "/m/b.gguf" {
					return "", errors.New("open model: " + path)
				}
				return "llama", nil
			}
		}, "models", statusFail, "open model: /m/b.gguf"},
		{"free clock", func(d *doctor) { d.probe.clock = func() (time.Duration, bool, error) { return 0, false, nil } }, "clock", statusWarn, "nothing keeps it right"},
		{"bad clock", func(d *doctor) {
			d.probe.clock = func() (time.Duration, bool, error) { return 2 * time.Second, true, nil }
		}, "clock", statusWarn, "it may be wrong by 2s"},
		{"no clock", func(d *doctor) {
			d.probe.clock = func() (time.Duration, bool, error) { return 0, false, syscall.EPERM }
		}, "clock", statusWarn, "operation not permitted"},
		{"memlock", func(d *doctor) { d.probe.limit = limitsOf(t, 7, 64<<10, 1<<20) }, "memlock", statusWarn, "the daemon may lock 64.0 KiB of memory"},
		{"few files", func(d *doctor) { alone(d); d.probe.limit = limitsOf(t, 0, limitInfinity, 256) }, "nofile", statusFail, "this shell may open 256 files"},
		{"not many files", func(d *doctor) { d.probe.limit = limitsOf(t, 7, limitInfinity, 1024) }, "nofile", statusWarn, "the daemon may open 1024 files, which many clients use up"},
		{"full disk", func(d *doctor) { spoilDisk(d, func(s *disk) { s.free, s.total = 1<<20, 1<<40 }) }, "disk", statusFail, "1.0 MiB free of 1.0 TiB for /var/lib/kevlard"},
		{"little disk", func(d *doctor) {
			spoilDisk(d, func(s *disk) { s.free, s.total = 100<<20, 1<<40 })
		}, "disk", statusWarn, "100.0 MiB free of 1.0 TiB for /var/lib/kevlard"},
		{"small group", func(d *doctor) {
			d.cfg.Engine.MemoryBytes = 1 << 30
			spoilGroups(d, func(l *groupLimits) { l.memory = 1 << 30 })
		}, "cgroup", statusFail, "the control group of the daemon allows 1.0 GiB of memory, [engine] memory_bytes and [kv] ram_bytes are 1.2 GiB: it would be killed"},
		{"tiny group", func(d *doctor) {
			spoilGroups(d, func(l *groupLimits) { l.memory = 400 << 20 })
		}, "cgroup", statusWarn, "the control group of the daemon allows 400.0 MiB of memory, which is little"},
		{"no group", func(d *doctor) {
			d.probe.groups = func(int) (groupLimits, error) { return groupLimits{}, syscall.EACCES }
		}, "cgroup", statusWarn, "permission denied"},
		{"CPU quota", func(d *doctor) { spoilGroups(d, func(l *groupLimits) { l.cpus = 1.5 }) }, "cpu", statusWarn, "the control group of the daemon allows 1.5 CPUs and stops it when they are used up"},
		{"few threads", func(d *doctor) { spoilGroups(d, func(l *groupLimits) { l.tasks = 64 }) }, "tasks", statusFail, "the control group of the daemon allows 64 threads"},
		{"not many threads", func(d *doctor) { spoilGroups(d, func(l *groupLimits) { l.tasks = 512 }) }, "tasks", statusWarn, "the control group of the daemon allows 512 threads, which"},
		{"read-only disk", func(d *doctor) { spoilDisk(d, func(s *disk) { s.readOnly = true }) }, "disk", statusFail, "/var/lib/kevlard is on a file system that is read-only"},
		{"no inodes", func(d *doctor) { spoilDisk(d, func(s *disk) { s.inodes = 7 }) }, "disk", statusFail, "7 inodes free of 2097152 for /var/lib/kevlard"},
		{"few inodes", func(d *doctor) { spoilDisk(d, func(s *disk) { s.inodes = 700 }) }, "disk", statusWarn, "700 inodes free of 2097152 for /var/lib/kevlard"},
		{"a clock ahead", func(d *doctor) { d.clocks.Clocks[0].OffsetMS = 3200 }, "skew", statusWarn, "the clock of n2 is 3.2s ahead of this one"},
		{"a clock behind", func(d *doctor) { d.clocks.Clocks[0].OffsetMS = -900 }, "skew", statusWarn, "the clock of n2 is 900ms behind this one"},
		{"a slow clock call", func(d *doctor) { d.clocks.Clocks[0].WithinMS = 1200 }, "skew", statusWarn, "n2 took 2.4s to tell its time: its clock cannot be compared"},
		{"no clock call", func(d *doctor) { d.clocks = report.Clocks{Unreachable: []string{"n2"}} }, "skew", statusWarn, "no time from n2"},
		{"an older daemon", func(d *doctor) { d.unclear = errors.New("404") }, "skew", statusWarn, "the daemon did not compare its clock with those of others: 404"},
		{"no disk", func(d *doctor) { d.probe.space = func(string) (disk, error) { return disk{}, syscall.EIO } }, "disk", statusWarn, "input/output error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := wellDoctor()
			c.spoil(d)
			var found []finding
			for _, f := range d.examine(t.Context()) {
				switch {
				case f.Check == c.check && f.Status != statusOK:
					found = append(found, f)
				case f.Status == statusFail:
					t.Errorf("also %+v", f)
				}
			}
			if len(found) != 1 || found[0].Status != c.status || !strings.HasPrefix(found[0].What, c.what) || found[0].Fix == "" {
				t.Errorf("got %+v\nwant %s: %s, and a fix", found, c.status, c.what)
			}
		})
	}
}

// spoilDisk changes what the disk of a well host is.
func spoilDisk(d *doctor, how func(*disk)) {
	s := wellDisk()
	how(&s)
	d.probe.space = func(string) (disk, error) { return s, nil }
}

// spoilGroups changes what its control groups allow.
func spoilGroups(d *doctor, how func(*groupLimits)) {
	limits, err := d.probe.groups(0)
	how(&limits)
	d.probe.groups = func(int) (groupLimits, error) { return limits, err }
}

// limitsOf answers for one process.
func limitsOf(t *testing.T, want int, memlock, files uint64) func(int, int) (uint64, error) {
	return func(pid, resource int) (uint64, error) {
		if pid != want {
			t.Errorf("asked for process %d, not %d", pid, want)
		}
		if resource == limitMemlock {
			return memlock, nil
		}
		return files, nil
	}
}

// TestDoctorHere runs the real probes, which must answer whatever this host is like.
func TestDoctorHere(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if r := program(t, nil, "", "keygen", "--out", secret); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	args := []string{
		"doctor", "--dev", "--ring-secret-file", secret, "--data-dir", dir, "--models-dirs", dir, "--control", dir + "/none",
		"--ring-bind", "127.0.0.1:1", "--mesh-bind", "127.0.0.1:2", "--api-listen", "127.0.0.1:3",
	}
	r := program(t, nil, "", append(args, "-o", "json")...)
	var out struct {
		OK     *bool     `json:"ok"`
		Checks []finding `json:"checks"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || out.OK == nil || r.stderr != "" {
		t.Fatalf("%v: %+v", err, r)
	}
	failed := false
	seen := map[string]finding{}
	for _, f := range out.Checks {
		failed = failed || f.Status == statusFail
		seen[f.Check] = f
	}
	if *out.OK == failed || (r.code == exitFailed) != failed {
		t.Errorf("ok %v, exit %d, but failed %v", *out.OK, r.code, failed)
	}
	for _, check := range []string{"daemon", "secret", "address", "ports", "models", "clock", "memlock", "nofile", "disk", "rdma", "cgroup", "cpu", "tasks"} {
		if seen[check].What == "" {
			t.Errorf("%s is missing in %+v", check, out.Checks)
		}
	}
	if f := seen["address"]; f.What != "others will be told 127.0.0.1:1" {
		t.Errorf("%+v", f)
	}
	if r := program(t, nil, "", args...); !strings.Contains(r.stdout, "\nok    address   others will be told 127.0.0.1:1\n") {
		t.Errorf("%+v", r)
	}
}

// TestGossiper pings real members of a ring: memberlist itself is the reference.
func TestGossiper(t *testing.T) {
	key := make([]byte, secretBytes)
	start := func(name, label string) (*memberlist.Memberlist, netip.AddrPort) {
		t.Helper()
		c := memberlist.DefaultLocalConfig()
		c.Name, c.Label, c.SecretKey, c.LogOutput = name, label, key, io.Discard
		c.BindAddr, c.BindPort, c.AdvertiseAddr, c.AdvertisePort = "127.0.0.1", 0, "127.0.0.1", 0
		m, err := memberlist.Create(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Shutdown(); err != nil {
				t.Error(err)
			}
		})
		return m, netip.MustParseAddrPort(m.LocalNode().Address())
	}
	a, addrA := start("a", "ring")
	_, addrB := start("b", "ring")
	if n, err := a.Join([]string{addrB.String()}); n != 1 || err != nil {
		t.Fatalf("joined %d: %v", n, err)
	}
	// Nobody listens there: the port was free a moment ago.
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := netip.MustParseAddrPort(c.LocalAddr().String())
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	other := append([]byte{1}, key[1:]...)
	for _, q := range []struct {
		name   string
		ring   string
		secret []byte
		wait   time.Duration
		ask    func(*gossiper) error
		want   error
	}{
		{"there and back", "ring", key, 5 * time.Second, func(g *gossiper) error { return g.ping(t.Context(), "b", addrB) }, nil},
		{"through a", "ring", key, 5 * time.Second, func(g *gossiper) error { return g.pingBy(t.Context(), addrA, "b", addrB) }, nil},
		{"another name", "ring", key, 100 * time.Millisecond, func(g *gossiper) error { return g.ping(t.Context(), "x", addrB) }, errNoAnswer},
		{"another ring", "gnir", key, 100 * time.Millisecond, func(g *gossiper) error { return g.ping(t.Context(), "b", addrB) }, errNoAnswer},
		{"another secret", "ring", other, 100 * time.Millisecond, func(g *gossiper) error { return g.ping(t.Context(), "b", addrB) }, errNoAnswer},
		{"through a, to nobody", "ring", key, 100 * time.Millisecond, func(g *gossiper) error { return g.pingBy(t.Context(), addrA, "b", nobody) }, errNoAnswer},
	} {
		g, err := newGossiper(q.ring, q.secret, netip.MustParseAddr("127.0.0.1"), q.wait)
		if err != nil {
			t.Fatal(err)
		}
		if err := q.ask(g); !errors.Is(err, q.want) {
			t.Errorf("%s: got %v, want %v", q.name, err, q.want)
		}
	}
}

// FuzzPacket checks that what comes to the doctor's socket cannot break it.
func FuzzPacket(f *testing.F) {
	secret := make([]byte, secretBytes)
	rand.Read(secret) // each fuzzing process has its own, so that no found packet is right
	g, err := newGossiper("ring", secret, netip.MustParseAddr("127.0.0.1"), time.Second)
	if err != nil {
		f.Fatal(err)
	}
	ack, err := g.seal(packetAck, gossipPing{SeqNo: 1})
	if err != nil || !g.acknowledges(ack) {
		f.Fatal(fmt.Errorf("an acknowledgement is not seen as one: %w", err))
	}
	f.Add(ack)
	f.Add([]byte{packetCompound, 2, 0, 1, 0, 1, packetAck, 0})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, packet []byte) {
		if g.acknowledges(packet) && string(packet) != string(ack) {
			t.Errorf("%x is taken without the secret", packet)
		}
		total := 0
		for _, p := range packetParts(packet) {
			total += len(p)
		}
		if total > len(packet) {
			t.Errorf("parts of %d bytes in %d", total, len(packet))
		}
	})
}

// TestFileOwner asks the file system itself.
func TestFileOwner(t *testing.T) {
	mine, err := fileOwner(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if me, err := user.Current(); err == nil && mine != me.Username {
		t.Errorf("a directory of %s is said to belong to %s", me.Username, mine)
	}
	if _, err := fileOwner(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}
