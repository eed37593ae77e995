package systemd

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

const slurmConf = "/etc/slurm/slurm.conf"

// slurm is a cluster of two nodes of Slurm, n1 with the controller, which are hosts of
// a ring too.
type slurm struct {
	*host // the controller
	nodes map[string]*host
}

// newSlurm returns when the ring serves and both nodes take jobs, without a health check.
func newSlurm(t *testing.T) *slurm {
	t.Helper()
	s := &slurm{nodes: map[string]*host{}}
	addrs := []string{"10.0.0.31", "10.0.0.32"}
	for i, addr := range addrs {
		h := newHostWith(t, "slurm", fmt.Sprintf("n%d", i+1), 31+i)
		s.nodes[h.name] = h
		if s.host == nil {
			s.host = h
		}
		h.boot()
		h.install("host", addrs...)
		h.run("systemctl", "enable", "--now", "kevlard")
		if h != s.host {
			h.run("systemctl", "disable", "slurmctld")
		}
		h.run("install", "-d", "-o", "slurm", "/var/spool/suite-ctld", "/var/spool/suite-slurmd")
		// It makes no groups here. The other plugin refuses to start on a machine that has
		// those of version 1 too.
		h.write("/etc/slurm/cgroup.conf", "CgroupPlugin=cgroup/v1\n", 0o644)
		h.t.Logf("%s has %s", addr, h.run("slurmd", "-V"))
	}
	for _, h := range s.nodes {
		h.awaitRing(2)
		h.awaitReady()
	}
	s.configure("Prolog", "Epilog", "PrologFlags")
	s.run("systemctl", "start", "slurmctld")
	for _, h := range s.nodes {
		h.run("systemctl", "start", "slurmd")
	}
	for name := range s.nodes {
		s.awaitIdle(name)
	}
	return s
}

// configure writes slurm.conf on both nodes, with these keys as docs/operating.md has them.
func (s *slurm) configure(keys ...string) {
	s.t.Helper()
	text := `ClusterName=suite
SlurmctldHost=n1(10.0.0.31)
SlurmUser=slurm
StateSaveLocation=/var/spool/suite-ctld
SlurmdSpoolDir=/var/spool/suite-slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=15
NodeName=n1 NodeAddr=10.0.0.31 CPUs=2
NodeName=n2 NodeAddr=10.0.0.32 CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP
`
	_, doc, _ := strings.Cut(s.run("cat", "/usr/share/doc/kevlard/operating.md"), "\n## Beside Slurm\n")
	doc, _, _ = strings.Cut(doc, "\n## ")
	for _, key := range keys {
		row := regexp.MustCompile("(?m)^\\| `" + key + "` \\| `([^`]+)` \\|$").FindStringSubmatch(doc)
		if row == nil {
			s.fail("docs/operating.md has no row for %s:\n%s", key, doc)
		}
		value := row[1]
		if key == "HealthCheckInterval" {
			value = "4" // no minute for each; checks without a pause would leave none for pings
		}
		text += key + "=" + value + "\n"
	}
	for _, h := range s.nodes {
		h.write(slurmConf, text, 0o644)
	}
}

// state returns the state of a node in Slurm, and the reason that an admin sees.
func (s *slurm) state(node string) string {
	out, err := s.try("sinfo", "-hN", "-n", node, "-o", "%T %E")
	if err != nil {
		return "sinfo: " + out
	}
	return out
}

// submit starts a batch job, whose script runs on the first of its nodes until end is
// called, and returns its ID.
func (s *slurm) submit(args ...string) (id string) {
	s.t.Helper()
	return s.run(append([]string{"sbatch", "--parsable", "-o", "/dev/null", "--wrap", "until test -e /var/tmp/end-$SLURM_JOB_ID; do sleep 0.1; done"}, args...)...)
}

// running waits until a job runs.
func (s *slurm) running(id string) {
	s.t.Helper()
	s.await("job "+id+" runs", func() bool { return s.job(id) == "RUNNING" })
}

// job returns the state of a job.
func (s *slurm) job(id string) string {
	out, _ := s.try("scontrol", "show", "-o", "job", id)
	_, state, _ := strings.Cut(out, "JobState=")
	state, _, _ = strings.Cut(state, " ")
	return state
}

// end ends the job, which then must succeed.
func (s *slurm) end(id string) {
	s.t.Helper()
	for _, h := range s.nodes {
		h.write("/var/tmp/end-"+id, "", 0o644)
	}
	s.await("job "+id+" ends", func() bool { return s.job(id) != "RUNNING" && s.job(id) != "COMPLETING" })
	if got := s.job(id); got != "COMPLETED" {
		s.fail("job %s is %s", id, got)
	}
}

// awaitState waits for the state of a node in the ring, as the other one sees it.
func (s *slurm) awaitState(node, want string) {
	s.t.Helper()
	var other *host
	for name, h := range s.nodes {
		if name != node {
			other = h
		}
	}
	other.await(node+" is "+want, func() bool {
		for _, m := range other.members() {
			if m.Name == node {
				return m.State == want && m.Ready == (want == "alive")
			}
		}
		return false
	})
}

// wantIdle fails if Slurm has drained the node.
func (s *slurm) wantIdle(node string) {
	s.t.Helper()
	s.await(node+" is idle in Slurm", func() bool {
		state := s.state(node)
		if strings.Contains(state, "drain") {
			s.fail("%s in Slurm: %s", node, state)
		}
		return state == "idle none"
	})
}

// awaitIdle waits until the node is idle; the health check may have drained it meanwhile.
func (s *slurm) awaitIdle(node string) {
	s.t.Helper()
	s.await(node+" is idle in Slurm", func() bool { return s.state(node) == "idle none" })
}

// TestSlurm has Slurm run the scripts of deploy/slurm, with the lines of slurm.conf that
// docs/operating.md has.
func TestSlurm(t *testing.T) {
	s := newSlurm(t)
	n1, n2 := s.nodes["n1"], s.nodes["n2"]
	part := func(name string, f func()) {
		t.Run(name, func(t *testing.T) {
			n1.t, n2.t = t, t
			f()
		})
		n1.t, n2.t = t, t
		if t.Failed() {
			t.FailNow()
		}
	}
	const prompt = "Once upon a time there was a little fox who"
	want := n1.generate(prompt, 300)

	part("JobUnderStreams", func() {
		texts := n2.streams(4, prompt, 300)
		n2.await("4 sessions run", func() bool { return n2.sessions() == 4 })
		id := s.submit("-w", "n2")
		s.running(id)
		s.awaitState("n2", "draining")
		if code, _ := n2.try("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1:8080/readyz"); code != "503" {
			n2.fail("/readyz of a node with a job: %s", code)
		}
		for i, text := range texts() {
			if text != want {
				n2.fail("stream %d is cut or wrong: %q", i, text)
			}
		}
		if got := n1.generate(prompt, 300); got != want {
			n1.fail("beside the job it answers %q", got)
		}
		s.end(id)
		s.awaitState("n2", "alive")
		s.wantIdle("n2")
	})

	part("TwoJobsOnOneNode", func() {
		first, second := s.submit("-w", "n2"), s.submit("-w", "n2")
		s.running(first)
		s.running(second)
		s.awaitState("n2", "draining")
		s.run("scontrol", "suspend", second) // it keeps its memory, so it counts
		s.end(first)
		if got := n2.self().State; got != "draining" {
			n2.fail("a job is left on it, and the epilog of another one made it %s", got)
		}
		s.run("scontrol", "resume", second)
		s.end(second)
		s.awaitState("n2", "alive")
		s.wantIdle("n2")
	})

	part("JobOnTwoNodes", func() {
		id := s.submit("-N2") // a batch script runs on the first, and starts nothing on the other
		s.running(id)
		for _, h := range s.nodes {
			h.await("the prolog has drained it", func() bool { return h.self().State == "draining" })
		}
		s.end(id)
		for name, h := range s.nodes {
			s.awaitState(name, "alive")
			h.awaitReady()
			s.wantIdle(name)
		}
	})
	// Neither keeps a job from the node, nor the node from Slurm.
	part("NoDaemon", func() {
		n2.run("systemctl", "stop", "kevlard")
		id := s.submit("-w", "n2")
		s.running(id)
		s.end(id)
		s.wantIdle("n2")
		n2.run("systemctl", "start", "kevlard")
		s.awaitState("n2", "alive")
	})

	part("RestartUnderJob", func() {
		id := s.submit("-w", "n2")
		s.running(id)
		s.awaitState("n2", "draining")
		boot := n2.self().Boot
		n2.run("systemctl", "restart", "kevlard")
		if got := n2.self(); got.Boot == boot || got.State != "draining" {
			n2.fail("restarted while a job runs it is %v", got)
		}
		s.end(id)
		s.awaitState("n2", "alive")
		s.wantIdle("n2")
	})

	part("DaemonHangs", func() {
		main := n2.show("kevlard", "MainPID")
		n2.run("kill", "-STOP", main)
		id := s.submit("-w", "n2")
		n2.await("the prolog has given up", func() bool {
			return strings.Contains(n2.journal("-t", "kevlard-prolog"), "job "+id+": drain failed with 124")
		})
		n2.run("kill", "-CONT", main)
		s.running(id)
		s.end(id)
		n2.awaitReady()
		s.wantIdle("n2")
	})

	part("HealthCheck", func() {
		s.configure("Prolog", "Epilog", "PrologFlags", "HealthCheckProgram", "HealthCheckInterval", "HealthCheckNodeState")
		s.run("scontrol", "reconfigure")
		n2.run("systemctl", "stop", "kevlard")
		s.await("Slurm drains it", func() bool { return strings.HasPrefix(s.state("n2"), "drained kevlard: ask the daemon at") })
		t.Logf("without a daemon: %s", s.state("n2"))
		n2.run("systemctl", "start", "kevlard")
		s.awaitState("n2", "alive")
		s.awaitIdle("n2")
		if got := s.state("n1"); got != "idle none" {
			s.fail("n1, whose kevlard was ready, is %s", got)
		}
		id := s.submit("-w", "n2")
		s.running(id)
		s.awaitState("n2", "draining")
		s.end(id)
		s.awaitState("n2", "alive")
		s.wantIdle("n2")
	})

	part("GPUFails", func() {
		n2.write("/var/lib/kevlard/gpus.jsonl", gpuReading(""), 0o644)
		n2.write("/etc/systemd/system/kevlard.service.d/gpu.conf", "[Service]\nEnvironment=KEVLARD_GPU_RECORDING=/var/lib/kevlard/gpus.jsonl\n", 0o644)
		n2.run("systemctl", "daemon-reload")
		n2.run("systemctl", "restart", "kevlard")
		s.awaitState("n2", "alive")
		s.awaitIdle("n2")
		id := s.submit("-w", "n2")
		s.running(id)
		s.awaitState("n2", "draining")
		n2.write("/var/lib/kevlard/gpus.jsonl", gpuReading("")+gpuReading("NVRM: Xid (PCI:0000:3b:00): 48, pid=1, name=job, DBE"), 0o644)
		n2.await("it sees the Xid", func() bool {
			out, _ := n2.try("kevlard", "status", "--check")
			return strings.Contains(out, "Xid 48")
		})
		s.end(id)
		s.await("Slurm drains it", func() bool {
			state := s.state("n2")
			return strings.HasPrefix(state, "drained kevlard: ") && strings.Contains(state, "Xid 48")
		})
		t.Logf("with a failed GPU: %s", s.state("n2"))
		if got := n2.journal("-t", "kevlard-epilog"); !strings.Contains(got, "job "+id+": drain --undo failed with 5") || !strings.Contains(got, "Xid 48") {
			n2.fail("the epilog's word in the journal: %s", got)
		}
		n2.run("rm", "/etc/systemd/system/kevlard.service.d/gpu.conf")
		n2.run("systemctl", "daemon-reload")
		n2.run("systemctl", "restart", "kevlard")
		s.awaitState("n2", "alive")
		s.awaitIdle("n2")
	})

	// After a power cut no node is ready until all have loaded: nobody need tell Slurm.
	part("RebootOfAll", func() {
		for _, h := range s.nodes {
			h.powerOff()
		}
		for _, h := range s.nodes {
			h.start()
		}
		for name := range s.nodes {
			s.awaitState(name, "alive")
			s.awaitIdle(name)
		}
	})

	part("RemovedTooEarly", func() { // as docs/operating.md warns
		n2.run("dpkg", "-r", "kevlard")
		s.submit("-w", "n2")
		s.await("Slurm drains it", func() bool {
			state := s.state("n2")
			return strings.HasPrefix(state, "drain") && strings.HasSuffix(state, "log error")
		})
	})
}

// gpuReading is a line of a recording of one GPU, with a line of the kernel's log.
func gpuReading(kernel string) string {
	return `{"devices":[{"uuid":"GPU-0","pci":"0000:3b:00.0"}],"kernel":["` + kernel + `"]}` + "\n"
}
