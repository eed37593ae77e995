package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// someone is a user of this host.
type someone struct {
	uid, gid int
	groups   []int
}

// as runs f on a thread of its own that has become the user; what the kernel notes of
// who connects is the thread's.
func (s someone) as(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its rights
		done <- func() error {
			list := make([]uint32, len(s.groups)+1)
			for i, g := range s.groups {
				list[i] = uint32(g)
			}
			if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(s.groups)), uintptr(unsafe.Pointer(&list[0])), 0); e != 0 {
				return fmt.Errorf("setgroups: %w", e)
			}
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(s.gid), uintptr(s.gid), uintptr(s.gid)); e != 0 {
				return fmt.Errorf("setresgid: %w", e)
			}
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(s.uid), uintptr(s.uid), uintptr(s.uid)); e != 0 {
				return fmt.Errorf("setresuid: %w", e)
			}
			f()
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// client connects as that user, now: its requests go over this one connection.
func (s someone) client(t *testing.T, path string) (*Client, error) {
	t.Helper()
	var conn net.Conn
	var err error
	s.as(t, func() { conn, err = net.Dial("unix", path) })
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { conn.Close() })
	used := false
	dial := func(context.Context, string, string) (net.Conn, error) {
		if used {
			return nil, errors.New("a second connection")
		}
		used = true
		return conn, nil
	}
	return &Client{path: path, http: &http.Client{Transport: &http.Transport{DialContext: dial}}}, nil
}

// TestControlGroup connects as real users to a socket with a group, and asks for
// everything that there is.
func TestControlGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it becomes other users, which takes root")
	}
	const group, other = 54321, 54322
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} { // the test's own: others may pass
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "k.sock")
	l, err := ListenControl(path, strconv.Itoa(group))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != fs.ModeSocket|0o660 {
		t.Fatalf("mode %v, %v, want a socket of 0660", info.Mode(), err)
	}
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "kevlard_members 1\n") })
	c := NewControl(l, &toyNode{}, &toy{}, metrics, Version{}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	many := make([]int, 200) // more than the first look at them has room for
	for i := range many {
		many[i] = 60000 + i
	}
	many = append(many, group)
	for _, u := range []struct {
		name string
		who  someone
		want access
	}{
		{"root", someone{0, 0, nil}, accessFull},
		{"group", someone{1234, group, nil}, accessRead},
		{"supplementary group", someone{1234, other, []int{other, group}}, accessRead},
		{"many groups", someone{1234, other, many}, accessRead},
		{"another group", someone{1234, other, []int{other}}, accessNone},
		{"no group", someone{1234, 1234, nil}, accessNone},
	} {
		t.Run(u.name, func(t *testing.T) {
			client, err := u.who.client(t, path)
			if u.want == accessNone {
				if !errors.Is(err, fs.ErrPermission) {
					t.Errorf("it connected: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range readers() {
				resp, err := client.do(t.Context(), http.MethodGet, p, nil)
				if err != nil {
					t.Errorf("GET %s: %v", p, err)
					continue
				}
				if b, err := io.ReadAll(resp.Body); p == "/metrics" && (err != nil || !strings.Contains(string(b), "kevlard_members")) {
					t.Errorf("metrics %q, %v", b, err)
				}
				resp.Body.Close()
			}
			for path, body := range map[string]any{
				"/join": joinQuery{Addrs: []string{"10.0.0.1:1"}}, "/leave": leaveQuery{}, "/drain": drainQuery{}, "/force-leave": drainQuery{Node: "x"},
				"/fetch": struct{}{}, "/keys": keysQuery{Do: "list"}, "/generate": struct{}{}, "/chat": struct{}{},
				"/debug/pprof/cmdline": nil,
			} {
				method := http.MethodPost
				if body == nil {
					method = http.MethodGet
				}
				resp, err := client.do(t.Context(), method, path, body)
				if err == nil {
					resp.Body.Close()
				}
				refused, ok := errors.AsType[*Error](err)
				refusal := ok && refused.Status == http.StatusForbidden
				if refusal != (u.want == accessRead) {
					t.Errorf("%s %s: %v", method, path, err)
				}
				if refusal && (*refused.Code != "control_read_only" || !strings.Contains(refused.Message, "user 1234")) {
					t.Errorf("%s %s is refused with %q", method, path, refused.Message)
				}
			}
		})
	}

	// The mode keeps strangers out; whoever comes by in spite of it is turned away.
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	stranger, err := someone{1234, other, []int{other}}.client(t, path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "neither root") {
		t.Errorf("a stranger: %v", err)
	}
}

// TestControlGroupUnknown: a daemon that can't do as it is told does not start.
func TestControlGroupUnknown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "k.sock")
	for _, group := range []string{"there-is-no-such-group", "99999999999"} {
		if l, err := ListenControl(path, group); err == nil || !strings.Contains(err.Error(), "[control] group") {
			t.Errorf("%s: %v, %v", group, l, err)
		}
	}
}
