package model

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Skeleton says what WriteSkeleton keeps of a file.
type Skeleton struct {
	// KeepTensor chooses the tensors by name; nil keeps all.
	KeepTensor func(name string) bool
	// KeepKey chooses the metadata; nil keeps all. general.alignment is always
	// kept, since offsets depend on it.
	KeepKey func(key string) bool
	// Extra tensors are added after the kept ones: name, type and shape are used.
	Extra []Tensor
}

// EngineKey is a Skeleton.KeepKey that drops the tokenizer, which is most of a
// header and is not needed to compute.
func EngineKey(key string) bool { return !strings.HasPrefix(key, "tokenizer.") }

// WriteSkeleton writes to w, an empty file, a GGUF header with the chosen
// metadata, byte for byte, and the chosen tensors at fresh offsets, and extends
// w to the size the weights would need without writing any: on most file systems
// the file then takes the disk space of its header only. Names of tensors must be
// unique and every shape must suit its type.
func (f *File) WriteSkeleton(w *os.File, s Skeleton) error {
	var tensors []Tensor
	seen := make(map[string]bool)
	for _, t := range f.tensors {
		if s.KeepTensor == nil || s.KeepTensor(t.Name) {
			tensors = append(tensors, t)
			seen[t.Name] = true
		}
	}
	for _, t := range s.Extra {
		var err error
		if t.Size, err = tensorBytes(t.Type, t.Shape); err != nil {
			return fmt.Errorf("skeleton: extra tensor %q: %w", t.Name, err)
		}
		if seen[t.Name] || t.Name == "" || len(t.Name) > maxTensorName {
			return fmt.Errorf("skeleton: extra tensor %q: want a new name of 1 to %d bytes", t.Name, maxTensorName)
		}
		tensors = append(tensors, t)
		seen[t.Name] = true
	}
	var keys []field
	for _, k := range f.keys {
		if s.KeepKey == nil || s.KeepKey(k.key) || k.key == "general.alignment" {
			keys = append(keys, k)
		}
	}
	out := bufio.NewWriter(w)
	h := headerWriter{w: out}
	h.preamble(f.version, len(tensors), len(keys))
	for _, k := range keys {
		h.copyFrom(f.r, k.start, k.end)
	}
	end := h.tensorInfos(tensors, f.alignment)
	if h.err == nil {
		h.err = out.Flush()
	}
	if h.err == nil {
		h.err = w.Truncate(alignUp(h.at, f.alignment) + end)
	}
	if h.err != nil {
		return fmt.Errorf("write skeleton %s: %w", w.Name(), h.err)
	}
	return nil
}

// headerWriter writes the parts of a GGUF header and keeps the first error.
type headerWriter struct {
	w   io.Writer
	at  int64
	err error
}

func (h *headerWriter) bytes(b []byte) {
	if h.err != nil {
		return
	}
	n, err := h.w.Write(b)
	h.at += int64(n)
	h.err = err
}

func (h *headerWriter) u32(v uint32) { h.bytes(binary.LittleEndian.AppendUint32(nil, v)) }
func (h *headerWriter) u64(v uint64) { h.bytes(binary.LittleEndian.AppendUint64(nil, v)) }

func (h *headerWriter) text(s string) {
	h.u64(uint64(len(s)))
	h.bytes([]byte(s))
}

func (h *headerWriter) copyFrom(r io.ReaderAt, from, to int64) {
	if h.err != nil {
		return
	}
	n, err := io.Copy(h.w, io.NewSectionReader(r, from, to-from))
	h.at += n
	if err == nil && n != to-from {
		err = errors.New("the source file became shorter")
	}
	h.err = err
}

func (h *headerWriter) preamble(version uint32, tensors, keys int) {
	h.bytes([]byte("GGUF"))
	h.u32(version)
	h.u64(uint64(tensors))
	h.u64(uint64(keys))
}

// tensorInfos writes the infos with offsets that lay the tensors out one after
// another, and returns the size of the data; the offset of each tensor relative
// to the data is left in ts.
func (h *headerWriter) tensorInfos(ts []Tensor, alignment int64) int64 {
	var end int64
	for i := range ts {
		t := &ts[i]
		t.Offset = alignUp(end, alignment)
		end = t.Offset + t.Size
		h.text(t.Name)
		h.u32(uint32(len(t.Shape)))
		for _, d := range t.Shape {
			h.u64(d)
		}
		h.u32(uint32(t.Type))
		h.u64(uint64(t.Offset))
	}
	return end
}
