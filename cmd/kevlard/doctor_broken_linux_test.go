package main

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDoctorBroken breaks the host itself, one thing at a time, around a doctor in a process
// of its own.
func TestDoctorBroken(t *testing.T) {
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	driver := t.TempDir() // before the system's, if it has one
	if err := os.WriteFile(filepath.Join(driver, "libnvidia-ml.so.1"), []byte("cut"), 0o600); err != nil {
		t.Fatal(err)
	}
	mounts := func(options string) []string {
		return []string{"unshare", "--mount", "sh", "-c", "mount -t tmpfs -o " + options + ` tmpfs "$DATA" && exec "$@"`, "sh"}
	}
	for _, c := range []struct {
		name         string
		wrap         []string // commands that run the program
		root         bool
		edit         func(secret string) []string // flags, after it broke something; nil: none
		check        string
		status, says string
	}{
		{"nothing", nil, false, nil, "secret", statusOK, "only its owner can read it"},
		{"little locked memory", []string{"prlimit", "--memlock=65536:65536"}, false, nil, "memlock", statusWarn, "this shell may lock 64.0 KiB"},
		{"few files", []string{"prlimit", "--nofile=256:256"}, false, nil, "nofile", statusFail, "this shell may open 256 files"},
		{"a full disk", mounts("size=64k"), true, nil, "disk", statusFail, "free of 64.0 KiB for "},
		{"no inodes", mounts("size=2g,nr_inodes=20"), true, nil, "disk", statusFail, "inodes free of 20 for "},
		{"a read-only disk", mounts("ro"), true, nil, "disk", statusFail, "is on a file system that is read-only"},
		{"UDP taken", nil, false, func(string) []string { return []string{"--ring-bind", udp.LocalAddr().String()} }, "ports", statusFail, "UDP " + udp.LocalAddr().String() + " is taken"},
		{"TCP taken", nil, false, func(string) []string { return []string{"--api-listen", tcp.Addr().String()} }, "ports", statusFail, "TCP " + tcp.Addr().String() + " is taken"},
		{"an address of nobody", nil, false, func(string) []string { return []string{"--mesh-bind", "192.0.2.1:7947"} }, "ports", statusFail, "TCP 192.0.2.1:7947 is no address of this host"},
		{"a secret for all to read", nil, false, func(secret string) []string {
			if err := os.Chmod(secret, 0o644); err != nil {
				t.Fatal(err)
			}
			return nil
		}, "secret", statusFail, "mode 0644 lets others read it"},
		{"half a secret", nil, false, func(secret string) []string {
			if err := os.Truncate(secret, 20); err != nil {
				t.Fatal(err)
			}
			return nil
		}, "secret", statusFail, "it does not hold 32 bytes"},
		{"no secret", nil, false, func(secret string) []string {
			if err := os.Remove(secret); err != nil {
				t.Fatal(err)
			}
			return nil
		}, "secret", statusFail, "no such file or directory"},
		{"a GPU whose driver's library is broken", []string{"env", "LD_LIBRARY_PATH=" + driver}, false, func(string) []string { return []string{"--engine-devices", "cuda:0"} }, "gpu", statusFail, "[engine] devices has cuda:0: NVIDIA's driver is not installed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.root && os.Geteuid() != 0 {
				t.Skip("it mounts a file system, which takes root")
			}
			dir := t.TempDir()
			secret, data := filepath.Join(dir, "secret"), filepath.Join(dir, "data")
			if r := program(t, nil, "", "keygen", "--out", secret); r.code != 0 {
				t.Fatalf("%+v", r)
			}
			if err := os.Mkdir(data, 0o700); err != nil {
				t.Fatal(err)
			}
			listen, _ := listenFlags(t)
			args := append(append([]string{}, c.wrap...), os.Args[0], "doctor", "--config", os.DevNull, "--dev", "--ring-secret-file", secret, "--data-dir", data, "--models-dirs", dir,
				"--control", dir+"/none", "-o", "json")
			args = append(args, listen...)
			if c.edit != nil {
				args = append(args, c.edit(secret)...)
			}
			var stdout, stderr bytes.Buffer
			cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
			cmd.Env = append(os.Environ(), asProgram+"=1", "DATA="+data)
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			var out struct{ Checks []finding }
			if jerr := json.Unmarshal(stdout.Bytes(), &out); jerr != nil {
				t.Fatalf("%v: %v, %s", err, jerr, stderr.String())
			}
			if code := cmd.ProcessState.ExitCode(); c.status == statusFail && code != exitFailed {
				t.Errorf("exit code %d: %s", code, stdout.String())
			}
			var found []finding
			for _, f := range out.Checks {
				if f.Check == c.check {
					found = append(found, f)
				}
			}
			if len(found) == 0 || found[0].Status != c.status || !strings.Contains(found[0].What, c.says) || (found[0].Fix == "") != (c.status == statusOK) {
				t.Errorf("%+v\nwant %s: %s", found, c.status, c.says)
			}
		})
	}
}
