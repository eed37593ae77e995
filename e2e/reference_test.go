package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kevlard/kevlard/internal/devmesh"
	"github.com/kevlard/kevlard/internal/devmesh/load"
)

// modelsDir has the reference continuations and the f16 file of the small model.
const modelsDir = "../../shared/models"

// reference is a greedy continuation on which two other engines agree.
type reference struct {
	Prompt    string  `json:"prompt"`
	PromptIDs []int32 `json:"prompt_ids"`
	IDs       []int32 `json:"ids"`
	Text      string  `json:"text"`
}

func references(t *testing.T, file string) []reference {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(modelsDir, "references.json"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("no %s/references.json beside this repository: it holds what other engines generate", modelsDir)
	}
	if err != nil {
		t.Fatal(err)
	}
	var all map[string][]reference
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	if len(all[file]) == 0 {
		t.Fatalf("references.json has nothing for %s", file)
	}
	return all[file]
}

// TestGreedyEqualsOtherEngines sends the reference prompts, as text and as ids,
// through a gateway and a pipeline of real daemons.
func TestGreedyEqualsOtherEngines(t *testing.T) {
	for _, file := range []string{"fairy-7m-q8_0.gguf", "fairy-7m-f16.gguf"} {
		for _, stages := range []int{1, 2, 4, 8} {
			t.Run(fmt.Sprintf("%s/%d stages", file, stages), func(t *testing.T) {
				if stages != 4 {
					needLong(t, "a mesh for each number of stages; the engine's own tests cover them")
				}
				refs := references(t, file)
				m := start(t, devmesh.Options{Nodes: stages, Stages: stages, Gateways: 1, Model: filepath.Join(modelsDir, file)})
				for _, r := range refs {
					for _, ids := range [][]int32{nil, r.PromptIDs} {
						got := m.client.Stream(t.Context(), load.Request{
							Model: m.ModelName(), Prompt: r.Prompt, PromptIDs: ids, MaxTokens: len(r.IDs),
						}, nil)
						if got.Err != nil {
							t.Fatalf("%q: %v", r.Prompt, got.Err)
						}
						if !slices.Equal(got.IDs(), r.IDs) || got.Text() != r.Text {
							t.Errorf("%q: got %q, other engines say %q", r.Prompt, got.Text(), r.Text)
						}
					}
				}
			})
		}
	}
}
