//go:build cgo

package engine

import (
	"fmt"
	"io"
	"os"

	fsggml "github.com/ollama/ollama/fs/ggml"
	"github.com/ollama/ollama/ml"
	"golang.org/x/sys/unix"
)

// allocate makes the backend and the KV pool, and finds the tensors.
func (s *Stage) allocate(tensors []tensor, spec Spec) error {
	skeleton, err := writeSkeleton(s.w, tensors, graphNodes(spec.Layers.Len(), graphParts, s.dev))
	if err != nil {
		return err
	}
	defer skeleton.Close()
	make := func(flash ml.FlashAttentionType) error {
		s.flash = flash == ml.FlashAttentionEnabled
		s.backend, err = ml.NewBackend(fmt.Sprintf("/proc/self/fd/%d", skeleton.Fd()), ml.BackendParams{
			AllocMemory: true, NumThreads: spec.Threads, FlashAttention: flash, GPULayers: s.dev.placement(spec, s.w.Layers),
		})
		if err != nil {
			return fmt.Errorf("make ggml backend: %w", err)
		}
		return nil
	}
	if err := make(ml.FlashAttentionEnabled); err != nil {
		return err
	}
	if s.dev.onGPU() && !s.flashes() {
		s.backend.Close()
		if err := make(ml.FlashAttentionDisabled); err != nil {
			return err
		}
	}
	if s.copier, err = newCopier(s.dev); err != nil {
		return err
	}
	get := s.backend.Get
	s.embd, s.outNorm, s.output = get("token_embd.weight"), get("output_norm.weight"), get("output.weight")
	if s.info.Last() && s.output == nil {
		s.output = s.embd
	}
	n := spec.Layers.Len()
	s.kvctx = s.backend.NewContextSize(2*n + 2)
	width := s.w.KVHeads * s.w.HeadDim
	for i := spec.Layers.Lo; i < spec.Layers.Hi; i++ {
		t := func(name string) ml.Tensor { return get(fmt.Sprintf("blk.%d.%s", i, name)) }
		s.layers = append(s.layers, layer{
			attnNorm: t("attn_norm.weight"), q: t("attn_q.weight"), k: t("attn_k.weight"), v: t("attn_v.weight"), o: t("attn_output.weight"),
			ffnNorm: t("ffn_norm.weight"), gate: t("ffn_gate.weight"), up: t("ffn_up.weight"), down: t("ffn_down.weight"),
			qBias: t("attn_q.bias"), kBias: t("attn_k.bias"), vBias: t("attn_v.bias"),
			qNorm: t("attn_q_norm.weight"), kNorm: t("attn_k_norm.weight"), factors: t(ropeFactors),
		})
		kv := s.kvctx.Layer(i)
		// Not zeroed: pages are touched as sessions use them. A row is written before
		// any part may see it, and what is masked is never read.
		s.keys = append(s.keys, kv.Empty(ml.DTypeF32, width, spec.Cells))
		s.values = append(s.values, kv.Empty(ml.DTypeF32, width, spec.Cells))
	}
	s.info.KVBytes = int64(n) * 2 * int64(width) * 4 * int64(spec.Cells)
	return nil
}

// load streams the tensors' bytes into the backend.
func (s *Stage) load(tensors []tensor, progress func(done, total int64)) error {
	done, total := int64(0), totalBytes(tensors)
	buf := make([]byte, loadChunk)
	for _, t := range tensors {
		var targets []ml.Tensor
		if t.name == ropeFactors { // the library keeps one per layer
			for _, l := range s.layers {
				targets = append(targets, l.factors)
			}
		} else {
			targets = append(targets, s.backend.Get(t.name))
		}
		for _, target := range targets {
			if target == nil || tensorBytes(target) != t.size {
				return fmt.Errorf("tensor %s: the backend made no room of %d bytes for it", t.name, t.size)
			}
		}
		for off := int64(0); off < t.size; {
			b := buf[:min(int64(len(buf)), t.size-off)]
			if _, err := t.data.ReadAt(b, off); err != nil && err != io.EOF {
				return fmt.Errorf("read tensor %s at %d: %w", t.name, off, err)
			}
			for _, target := range targets {
				setTensor(target, int(off), b)
			}
			off += int64(len(b))
			done += int64(len(b))
			if progress != nil {
				progress(done, total)
			}
		}
	}
	s.info.WeightBytes = total
	return nil
}

// totalBytes is the bytes of tensors.
func totalBytes(tensors []tensor) (n int64) {
	for _, t := range tensors {
		n += t.size
	}
	return n
}

// writeSkeleton makes a GGUF in memory with tensors but without their data. The
// library sizes its graphs at 32 nodes per tensor, so empty tensors are added
// until nodes fit. Their name begins with output because without any such tensor
// the library would duplicate the embedding as an output.
func writeSkeleton(w *weights, tensors []tensor, nodes int) (*os.File, error) {
	fd, err := unix.MemfdCreate("kevlard-skeleton", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create skeleton: %w", err)
	}
	f := os.NewFile(uintptr(fd), "kevlard-skeleton")
	var infos []*fsggml.Tensor
	size := int64(1 << 16)
	for _, t := range tensors {
		infos = append(infos, &fsggml.Tensor{Name: t.name, Kind: uint32(t.kind), Shape: t.shape, WriterTo: noData{}})
		size += t.size + 64
	}
	for i := 0; i == 0 || len(infos) < (nodes+31)/32; i++ {
		infos = append(infos, &fsggml.Tensor{Name: fmt.Sprintf("output.none.%d", i), Shape: []uint64{1}, WriterTo: noData{}})
		size += 128
	}
	kv := fsggml.KV{"general.architecture": "llama", "llama.block_count": uint32(w.Layers)}
	if err := fsggml.WriteGGUF(f, kv, infos); err != nil {
		f.Close()
		return nil, fmt.Errorf("write skeleton: %w", err)
	}
	end, err := f.Seek(0, io.SeekCurrent)
	if err == nil {
		err = f.Truncate(end + size)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("size skeleton: %w", err)
	}
	return f, nil
}

// noData is the body of a skeleton's tensor.
type noData struct{}

func (noData) WriteTo(io.Writer) (int64, error) { return 0, nil }
