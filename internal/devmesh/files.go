package devmesh

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pelletier/go-toml/v2"

	"github.com/kevlard/kevlard/model/fairy"
)

// table is one table of a daemon's TOML file.
type table map[string]any

// writeConfig writes the configuration of one daemon. seeds are the gossip
// addresses that it joins.
func writeConfig(s spec, o Options, modelPath, secret string, seeds []string) error {
	models := table{"dirs": []string{filepath.Dir(modelPath)}}
	if s.empty {
		models["dirs"] = []string{filepath.Join(s.dir, "files")} // which is not there
	}
	if s.role == "host" && s.auto {
		models["assign"] = "auto"
	} else if s.role == "host" {
		models["assign"] = []table{{"model": modelPath, "lo": s.layers.Lo, "hi": s.layers.Hi}}
	}
	doc := map[string]table{
		"node":    {"name": s.name, "role": s.role, "data_dir": s.dir},
		"ring":    {"bind": s.addr(1), "advertise": s.ip, "join": seeds, "secret_file": secret, "dev": true},
		"mesh":    {"bind": s.addr(2), "bulk_port": s.base + 3},
		"api":     {"listen": s.addr(0)},
		"models":  models,
		"kv":      s.kv,
		"engine":  {"threads": o.Threads},
		"control": {"socket": s.socket()},
		"log":     {"level": o.LogLevel},
	}
	if o.Cells > 0 {
		doc["engine"]["cells"] = o.Cells
	}
	text, err := toml.Marshal(doc)
	if err != nil {
		return fmt.Errorf("encode configuration of %s: %w", s.name, err)
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("make directory of %s: %w", s.name, err)
	}
	if err := os.WriteFile(s.config(), text, 0o600); err != nil {
		return fmt.Errorf("write configuration of %s: %w", s.name, err)
	}
	return nil
}

// secretFile returns the path of the mesh's secret, made with `kevlard keygen` at
// first use.
func secretFile(ctx context.Context, exe, dir string) (string, error) {
	path := filepath.Join(dir, "secret")
	_, err := os.Stat(path)
	if err == nil {
		return path, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("look for the mesh secret: %w", err)
	}
	if out, err := exec.CommandContext(ctx, exe, "keygen", "--out", path).CombinedOutput(); err != nil {
		return "", fmt.Errorf("make the mesh secret with %s keygen: %w: %s", exe, err, out)
	}
	return path, nil
}

// modelFile returns the absolute path of the model to serve: the one given, or
// the bundled one, written to dir/models at first use.
func modelFile(given, dir string) (string, error) {
	if given != "" {
		path, err := filepath.Abs(given)
		if err != nil {
			return "", badOption("--model: %w", err)
		}
		if _, err := os.Stat(path); err != nil {
			return "", badOption("--model: %w", err)
		}
		return path, nil
	}
	path := filepath.Join(dir, "models", fairy.Name)
	bundled := fairy.GGUF()
	if have, err := os.Stat(path); err == nil && have.Size() == int64(len(bundled)) {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("make the model directory: %w", err)
	}
	return path, replaceFile(path, bundled, 0o644)
}

// replaceFile writes a file so that a reader sees the old content or the new one
// and nothing between.
func replaceFile(path string, content []byte, mode fs.FileMode) error {
	temp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	_, err = temp.Write(content)
	err = errors.Join(err, temp.Chmod(mode), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("replace %s: %w", path, errors.Join(err, os.Remove(temp.Name())))
	}
	return nil
}
