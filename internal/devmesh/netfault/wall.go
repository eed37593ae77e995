package netfault

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// restore is the program that changes rules, all of one call at once.
const restore = "iptables-restore"

// mark is put on packets that shall vanish.
const mark = 0x6b

// Wall stands around the daemons that are cut off.
type Wall struct{}

// Build prepares the namespace of this process, which Enter must have made usable.
func Build(ctx context.Context) (Wall, error) {
	if !Inside() {
		return Wall{}, errors.New("build a wall: this process is in the machine's own network")
	}
	return Wall{}, apply(ctx, fmt.Sprintf("*filter\n-A INPUT -m mark --mark %#x -j DROP\nCOMMIT\n", mark))
}

// Cut makes all packets between a daemon and everybody else vanish. The daemon
// listens on ip and runs in a group of its own; what it says to itself still arrives.
func (Wall) Cut(ctx context.Context, ip string, group int) error {
	return apply(ctx, rules("-A", ip, group))
}

// Mend takes Cut back.
func (Wall) Mend(ctx context.Context, ip string, group int) error {
	return apply(ctx, rules("-D", ip, group))
}

// rules marks what the group sends to others, and what others send to its address.
func rules(verb, ip string, group int) string {
	var b strings.Builder
	b.WriteString("*mangle\n")
	fmt.Fprintf(&b, "%s OUTPUT ! -d %s -m owner --gid-owner %d -j MARK --set-mark %#x\n", verb, ip, group, mark)
	fmt.Fprintf(&b, "%s OUTPUT -d %s -m owner ! --gid-owner %d -j MARK --set-mark %#x\n", verb, ip, group, mark)
	b.WriteString("COMMIT\n")
	return b.String()
}

func apply(ctx context.Context, rules string) error {
	cmd := exec.CommandContext(ctx, restore, "--noflush", "--wait")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("change packet filter rules with %s: %w: %s", restore, err, out)
	}
	return nil
}
