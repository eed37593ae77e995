package sdk

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const (
	installWithin = 5 * time.Minute // npm has fetched one package
	nodeWithin    = 5 * time.Minute // all tests of the Node client have ended
)

// install brings the Node client, as node/package-lock.json pins it, into the user's
// cache, and makes a directory in which node finds it beside our scripts.
func (c *control) install(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"node", "npm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is missing: install Node 20 or newer with npm, from your distribution or https://nodejs.org", tool)
		}
	}
	lock, err := os.ReadFile("node/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(lock)
	modules := filepath.Join(cache, "kevlard", "sdk-node", hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(modules); errors.Is(err, fs.ErrNotExist) {
		fetch(t, modules)
	} else if err != nil {
		t.Fatal(err)
	}
	c.runDir = t.TempDir()
	if err := os.CopyFS(c.runDir, os.DirFS("node")); err != nil {
		t.Fatal(err)
	}
	// A node_modules that somebody installed beside the scripts would be copied too.
	if err := os.RemoveAll(filepath.Join(c.runDir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(modules, filepath.Join(c.runDir, "node_modules")); err != nil {
		t.Fatal(err)
	}
}

// fetch installs into modules, which appears only when it is complete.
func fetch(t *testing.T, modules string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(modules), 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(modules), "new-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(filepath.Join("node", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), installWithin)
	defer cancel()
	npm := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	npm.Dir = dir
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	err = os.Rename(filepath.Join(dir, "node_modules"), modules)
	if err != nil && !errors.Is(err, fs.ErrExist) { // another run was faster
		t.Fatal(err)
	}
}

// node runs the tests of the Node client whose names begin so. At least one must.
func (c *control) node(ctx context.Context, test string) error {
	ctx, cancel := context.WithTimeout(ctx, nodeWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "--test-reporter=spec", "conformance.mjs")
	cmd.Dir = c.runDir
	cmd.Env = append(os.Environ(), "SDK_BASE_URL="+c.Entry().APIURL()+"/v1", "SDK_MESH_URL="+c.url, "SDK_TEST="+test)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("node: %w\n%s", err, out.String())
	}
	if !bytes.Contains(out.Bytes(), []byte("✔ "+test)) {
		return fmt.Errorf("node ran no test whose name begins with %q:\n%s", test, out.String())
	}
	c.log(out.String())
	return nil
}
