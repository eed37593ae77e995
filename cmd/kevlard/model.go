package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/kevlard/kevlard/cmd/kevlard/config"
	"github.com/kevlard/kevlard/model"
	"github.com/urfave/cli/v2"
)

func (sh shell) modelCommand() *cli.Command {
	return &cli.Command{
		Name:  "model",
		Usage: "list, show, check and make model files",
		Subcommands: []*cli.Command{
			{
				Name: "ls", Usage: "list the model files in directories", ArgsUsage: "[DIR...]",
				Description: "Without DIR, the [models] dirs of the configuration are listed, and what was fetched to its data_dir.",
				Flags:       []cli.Flag{configFlag()},
				Action:      sh.modelList,
			},
			{Name: "inspect", Usage: "show a model's shape, units and digests", ArgsUsage: "FILE", Action: sh.modelInspect},
			{Name: "verify", Usage: "read all weights again and compare with the digests kept", ArgsUsage: "FILE", Action: sh.modelVerify},
			sh.fetchCommand(),
			synthCommand(),
		},
		Action: needVerb,
	}
}

// needVerb is the action of a command that is only a group of verbs.
func needVerb(c *cli.Context) error {
	var names []string
	for _, sub := range c.Command.Subcommands {
		names = append(names, sub.Name)
	}
	return usageError("%s needs a verb: one of %v", c.Command.FullName(), names)
}

// loader keeps digests in the user's cache, so that a file is hashed once.
func (sh shell) loader() model.Loader { return model.Loader{CacheDir: sh.cacheDir("models")} }

// cacheDir returns a directory below the user's cache, or "" if there is none.
func (sh shell) cacheDir(name string) string {
	if d := sh.env["XDG_CACHE_HOME"]; filepath.IsAbs(d) {
		return filepath.Join(d, "kevlard", name)
	}
	if home := sh.env["HOME"]; home != "" {
		return filepath.Join(home, ".cache", "kevlard", name)
	}
	return ""
}

// modelEntry is a line of `model ls -o json`.
type modelEntry struct {
	ID      string   `json:"id"`
	Name    string   `json:"name"`
	Arch    string   `json:"arch"`
	Path    string   `json:"path"`
	Layers  int      `json:"layers"`
	Dim     int      `json:"dim"`
	Vocab   int      `json:"vocab"`
	Context int      `json:"context"`
	Types   []string `json:"types"`
	Bytes   int64    `json:"bytes"`
	State   string   `json:"state"`            // file; fetched from other nodes, as a whole or partial
	Absent  []string `json:"absent,omitempty"` // units that are not here
}

// stateOf tells files from what was fetched.
func stateOf(m *model.Manifest) string {
	if info, err := os.Stat(m.Path); err != nil || !info.IsDir() {
		return "file"
	}
	if len(m.Absent) > 0 {
		return "partial"
	}
	return "fetched"
}

func entryOf(m *model.Manifest) modelEntry {
	return modelEntry{
		ID: m.ID.String(), Name: m.Name, Arch: m.Arch, Path: m.Path, Layers: m.Layers, Dim: m.Dim,
		Vocab: m.Vocab, Context: m.Context, Types: m.TensorTypes, Bytes: m.Bytes(), State: stateOf(m), Absent: m.Absent,
	}
}

func (sh shell) modelList(c *cli.Context) error {
	dirs := c.Args().Slice()
	var fetched []string
	if len(dirs) == 0 {
		loaded, err := sh.loadConfig(c, config.Defaults())
		if err != nil {
			return err
		}
		dirs = loaded.Config.Models.Dirs
		fetched = fetchedModels(loaded.Config)
	}
	manifests, problems := sh.loader().Scan(c.Context, dirs)
	for _, dir := range fetched {
		m, err := sh.loader().Load(c.Context, dir)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		manifests = append(manifests, m)
	}
	list := make([]modelEntry, 0, len(manifests))
	t := newTable("NAME", "ID", "ARCH", "LAYERS", "CONTEXT", "TYPES", "SIZE", "STATE", "PATH")
	for _, m := range manifests {
		e := entryOf(m)
		list = append(list, e)
		t.row(e.Name, m.ID.Short(), e.Arch, strconv.Itoa(e.Layers), strconv.Itoa(e.Context), fmt.Sprint(e.Types), byteSize(e.Bytes), stateText(m), e.Path)
	}
	for _, p := range problems {
		fmt.Fprintf(c.App.ErrWriter, "kevlard: %v\n", p)
	}
	var err error
	if wantsJSON(c) {
		err = writeJSON(c.App.Writer, map[string]any{"models": list})
	} else {
		err = t.write(c.App.Writer)
	}
	if err == nil && len(problems) > 0 {
		return errSilent // each was named above
	}
	return err
}

// unitEntry is a unit in `model inspect` and `model verify`.
type unitEntry struct {
	Name    string   `json:"name"`
	Digest  string   `json:"digest"`
	Bytes   int64    `json:"bytes"`
	Tensors []string `json:"tensors,omitempty"`
	OK      *bool    `json:"ok,omitempty"` // verify only
}

func (sh shell) modelInspect(c *cli.Context) error {
	path, err := oneArgument(c, "FILE")
	if err != nil {
		return err
	}
	m, err := sh.loader().Load(c.Context, path)
	if err != nil {
		return err
	}
	units := make([]unitEntry, 0, len(m.Units))
	for _, u := range m.Units {
		units = append(units, unitEntry{Name: u.Name, Digest: u.Digest.String(), Bytes: u.Bytes, Tensors: u.Tensors})
	}
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, struct {
			modelEntry
			Shape model.Shape `json:"shape"`
			Units []unitEntry `json:"units"`
		}{entryOf(m), m.Shape, units})
	}
	fmt.Fprintf(c.App.Writer, "%s  %s\n%s\n\n", m.Name, m.Path, m.ID)
	t := newTable("arch", m.Arch)
	for _, r := range []struct {
		name  string
		value int
	}{
		{"layers", m.Layers},
		{"dim", m.Dim},
		{"heads", m.Heads},
		{"kv heads", m.KVHeads},
		{"head dim", m.HeadDim},
		{"ffn", m.FFN},
		{"vocab", m.Vocab},
		{"context", m.Context},
	} {
		t.row(r.name, strconv.Itoa(r.value))
	}
	t.row("rope base", fmt.Sprint(m.RopeBase))
	t.row("eps", fmt.Sprint(m.Eps))
	t.row("types", fmt.Sprint(m.TensorTypes))
	t.row("size", byteSize(m.Bytes()))
	if err := t.write(c.App.Writer); err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer)
	t = newTable("UNIT", "SIZE", "TENSORS", "DIGEST")
	for _, u := range units {
		t.row(u.Name, byteSize(u.Bytes), strconv.Itoa(len(u.Tensors)), u.Digest)
	}
	return t.write(c.App.Writer)
}

func (sh shell) modelVerify(c *cli.Context) error {
	path, err := oneArgument(c, "FILE")
	if err != nil {
		return err
	}
	v, err := sh.loader().Verify(c.Context, path)
	if err != nil {
		return err
	}
	units := make([]unitEntry, 0, len(v.Units))
	t := newTable("UNIT", "SIZE", "DIGEST", "RESULT")
	for _, u := range v.Units {
		ok, result := u.OK(), "ok"
		switch {
		case !v.Known:
			result = "read, nothing to compare with"
		case !ok:
			result = "differs from " + u.Want.Short()
		}
		units = append(units, unitEntry{Name: u.Name, Digest: u.Got.String(), Bytes: u.Bytes, OK: &ok})
		t.row(u.Name, byteSize(u.Bytes), u.Got.Short(), result)
	}
	if wantsJSON(c) {
		err = writeJSON(c.App.Writer, map[string]any{
			"path": v.Manifest.Path, "id": v.Manifest.ID.String(), "ok": v.OK(), "known": v.Known, "changed": v.Changed, "units": units,
		})
	} else {
		err = t.write(c.App.Writer)
	}
	if err != nil || v.OK() {
		return err
	}
	if v.Changed {
		return fmt.Errorf("verify %s: the weights differ from those known before, and so do the file's size or time: if you replaced it on purpose, all is well; else fetch it again", path)
	}
	return fmt.Errorf("verify %s: the weights differ from those known before, though nobody wrote the file: it is damaged, fetch it again", path)
}

func synthCommand() *cli.Command {
	return &cli.Command{
		Name: "synth", Usage: "write a model of random weights and a given shape", ArgsUsage: "FILE",
		Description: fmt.Sprintf("Presets: %v. Flags of the shape override the preset's.", model.PresetNames()),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "preset", Usage: "start from the shape of `PRESET`"},
			&cli.IntFlag{Name: "layers", Usage: "number of layers"},
			&cli.IntFlag{Name: "dim", Usage: "values in a hidden row"},
			&cli.IntFlag{Name: "heads", Usage: "query heads"},
			&cli.IntFlag{Name: "kv-heads", Usage: "key and value heads"},
			&cli.IntFlag{Name: "ffn", Usage: "width of the feed-forward part"},
			&cli.IntFlag{Name: "vocab", Usage: "tokens"},
			&cli.IntFlag{Name: "context", Usage: "positions"},
			&cli.StringFlag{Name: "arch", Usage: "llama, mistral3, qwen2 or qwen3"},
			&cli.StringFlag{Name: "type", Usage: "format of the matrices: f32, f16, bf16, q8_0, q4_0, q4_k or q6_k"},
			&cli.Uint64Flag{Name: "seed", Usage: "equal seeds give equal files"},
			&cli.BoolFlag{Name: "tied", Usage: "the head uses the embedding's matrix"},
			&cli.StringFlag{Name: "name", Usage: "name in the file"},
		},
		Action: modelSynth,
	}
}

func modelSynth(c *cli.Context) error {
	path, err := oneArgument(c, "FILE")
	if err != nil {
		return err
	}
	spec, err := synthSpec(c)
	if err != nil {
		return err
	}
	if err := spec.Validate(); err != nil {
		return usageError("%w", err)
	}
	if _, err := os.Stat(path); err == nil {
		return fmt.Errorf("write model %s: it exists already: choose another name, or remove it", path)
	}
	bar := newProgress(c.App.ErrWriter, "writing "+filepath.Base(path))
	err = model.Synth(path, spec, bar.update)
	bar.end()
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("look at the model just written: %w", err)
	}
	if wantsJSON(c) {
		return writeJSON(c.App.Writer, map[string]any{"path": path, "bytes": info.Size()})
	}
	fmt.Fprintf(c.App.Writer, "%s: %s\n", path, byteSize(info.Size()))
	return nil
}

func synthSpec(c *cli.Context) (model.SynthSpec, error) {
	spec := model.SynthSpec{Type: model.Q8_0}
	if name := c.String("preset"); name != "" {
		preset, err := model.Preset(name)
		if err != nil {
			return spec, usageError("flag --preset: %w", err)
		}
		spec = preset
	}
	for name, dst := range map[string]*int{
		"layers": &spec.Layers, "dim": &spec.Dim, "heads": &spec.Heads, "kv-heads": &spec.KVHeads,
		"ffn": &spec.FFN, "vocab": &spec.Vocab, "context": &spec.Context,
	} {
		if c.IsSet(name) {
			*dst = c.Int(name)
		}
	}
	if c.IsSet("type") {
		t, err := model.ParseTensorType(c.String("type"))
		if err != nil {
			return spec, usageError("flag --type: %w", err)
		}
		spec.Type = t
	}
	if c.IsSet("arch") {
		spec.Arch = c.String("arch")
	}
	if c.IsSet("seed") {
		spec.Seed = c.Uint64("seed")
	}
	if c.IsSet("tied") {
		spec.Tied = c.Bool("tied")
	}
	if c.IsSet("name") {
		spec.Name = c.String("name")
	}
	return spec, nil
}

// resolveModel finds a model by path or, among dirs and others, by name or ID.
func resolveModel(ctx context.Context, l model.Loader, dirs []string, want string, others ...*model.Manifest) (*model.Manifest, error) {
	if info, err := os.Stat(want); err == nil && !info.IsDir() {
		return l.Load(ctx, want)
	} else if filepath.IsAbs(want) || filepath.Ext(want) == ".gguf" {
		return nil, fmt.Errorf("open model %s: %w: name a GGUF file, or a model in [models] dirs", want, errors.Join(err, isDirectory(info)))
	}
	manifests, problems := l.Scan(ctx, dirs)
	manifests = append(manifests, others...)
	var found []*model.Manifest
	var names []string
	for _, m := range manifests {
		if m.Name == want || m.ID.String() == want {
			found = append(found, m)
		}
		names = append(names, m.Name)
	}
	switch {
	case len(found) == 0:
		err := fmt.Errorf("find model %q in %v: there are %v: name one of these, or a GGUF file", want, dirs, names)
		if len(names) == 0 {
			err = fmt.Errorf("find model %q in %v: there is no model that this user can read: put a GGUF file there, or set [models] dirs", want, dirs)
		}
		return nil, errors.Join(append(problems, err)...) // the cause first
	case len(found) > 1 && found[0].ID != found[1].ID:
		return nil, fmt.Errorf("find model %q in %v: both %s and %s have that name: give the path of one", want, dirs, found[0].Path, found[1].Path)
	}
	return found[0], nil
}

func isDirectory(info os.FileInfo) error {
	if info != nil && info.IsDir() {
		return errors.New("it is a directory")
	}
	return nil
}
