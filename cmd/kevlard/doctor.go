package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/kevlard/kevlard/api"
	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"github.com/kevlard/kevlard/daemon/report"
	"github.com/urfave/cli/v2"
)

// The statuses of findings.
const (
	statusOK   = "ok"
	statusWarn = "warn" // it works, or cannot be told
	statusFail = "fail" // it does not work like this
)

// finding is what one check found.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"`
	What   string `json:"what"`
	Fix    string `json:"fix"` // what to do; empty if all is well
}

func (sh shell) doctorCommand() *cli.Command {
	return &cli.Command{
		Name: "doctor", Usage: "check this host: what is wrong and how to fix it",
		Description: "Checks the configuration that kevlard agent would use with the same flags: secret, advertised\n" +
			"address, ports, model files, clock, limits, disk, RDMA. If the daemon runs, each member is tried over\n" +
			"UDP in both directions and over TCP from here, and its clock compared; run it on the other host too for\n" +
			"TCP from there. Exits 1 if a check fails.",
		Flags: configFlags(),
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			host, err := os.Hostname()
			if err != nil {
				return fmt.Errorf("find the host's name: %w: set [node] name", err)
			}
			defaults := config.Defaults()
			defaults.Node.Name = host
			defaults.Control.Socket = sh.defaultSocket()
			loaded, err := sh.loadConfig(c, defaults)
			if err != nil {
				return err
			}
			d := &doctor{cfg: loaded.Config, probe: hostProbes()}
			if err := d.meet(c.Context, api.NewClient(loaded.Config.Control.Socket)); err != nil {
				return err
			}
			return writeFindings(c, d.examine(c.Context))
		},
	}
}

// doctor examines a host.
type doctor struct {
	cfg   config.Config
	probe probes
	// status and members are the daemon's; status is nil if none runs.
	status  *report.Status
	members report.Members
	why     error // why no daemon could be asked
	// clocks compares those of the peers; unclear is why it could not be asked for.
	clocks  report.Clocks
	unclear error
	secret  []byte
}

// meet asks the daemon, if there is one, what it knows.
func (d *doctor) meet(ctx context.Context, client *api.Client) error {
	asking, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	s, err := client.Status(asking)
	if err == nil {
		d.members, err = client.Members(asking)
	}
	switch {
	case errors.Is(context.Cause(ctx), errInterrupted):
		return err
	case err != nil:
		d.why = err
	default:
		d.status = &s
		d.clocks, d.unclear = askClocks(ctx, client)
	}
	return nil
}

// self returns what the daemon says about its own addresses.
func (d *doctor) self() (report.Member, netip.AddrPort, bool) {
	for _, m := range d.members.Nodes {
		if m.Name == d.members.Self {
			addr, err := netip.ParseAddrPort(m.Addr)
			return m, addr, err == nil
		}
	}
	return report.Member{}, netip.AddrPort{}, false
}

// examine runs all checks.
func (d *doctor) examine(ctx context.Context) []finding {
	var out []finding
	for _, check := range []func(context.Context) []finding{
		d.checkDaemon, d.checkSecret, d.checkOwners, d.checkAddress, d.checkPorts, d.checkPeers,
		d.checkModels, d.checkClock, d.checkPeerClocks, d.checkMemlock, d.checkFiles, d.checkDisk, d.checkMemory, d.checkCPUs, d.checkTasks, d.checkRDMA, d.checkGPUs,
	} {
		out = append(out, check(ctx)...)
	}
	return out
}

// writeFindings shows the findings, and fails if one of them does.
func writeFindings(c *cli.Context, findings []finding) error {
	failed := false
	for _, f := range findings {
		failed = failed || f.Status == statusFail
	}
	var err error
	if wantsJSON(c) {
		err = writeJSON(c.App.Writer, map[string]any{"ok": !failed, "checks": findings})
	} else {
		err = tellFindings(c.App.Writer, findings)
	}
	if err == nil && failed {
		return errSilent // the findings say why
	}
	return err
}

// tellFindings shows the findings to people.
func tellFindings(w io.Writer, findings []finding) error {
	for _, f := range findings {
		if _, err := fmt.Fprintf(w, "%-4s  %-8s  %s\n", f.Status, f.Check, f.What); err != nil {
			return err
		}
		if f.Fix == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%16s-> %s\n", "", f.Fix); err != nil {
			return err
		}
	}
	return nil
}
