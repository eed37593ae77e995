package model

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
)

// Tensor says where one tensor lies in a file and how it is stored.
type Tensor struct {
	Name string
	Type TensorType
	// Shape has the fastest-varying dimension first (a row's length).
	Shape []uint64
	// Offset is the absolute position of the first byte in the file.
	Offset int64
	// Size is in bytes, without padding.
	Size int64
}

// File is the parsed header of a GGUF file (version 2 or 3, little-endian). It
// holds names, scalars and positions; arrays and weights stay in the file and
// are read when asked for. A File never changes and may be shared.
type File struct {
	r         io.ReaderAt
	closer    io.Closer
	size      int64
	version   uint32
	alignment int64
	dataStart int64
	keys      []field
	byKey     map[string]int
	tensors   []Tensor
	byName    map[string]int
}

// field is one metadata pair. Its bytes, key included, are [start,end) of the file.
type field struct {
	key        string
	kind, elem valueKind
	count      uint64 // elements of an array
	bits       uint64 // value of a scalar, as stored
	text       string // value of a string
	start, end int64
	value      int64 // position of the value, or of an array's first element
}

// Open opens and parses the file at path, or the directory of Parts there. The caller
// closes it.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		f.Close()
		return openParts(path)
	}
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open model %s: %w", path, err)
	}
	file, err := NewFile(f, info.Size())
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("read model %s: %w", path, err)
	}
	file.closer = f
	return file, nil
}

// Close closes the file that Open opened; after NewFile it does nothing.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}

// Version returns the GGUF version, 2 or 3.
func (f *File) Version() int { return int(f.version) }

// Size returns the file's size in bytes.
func (f *File) Size() int64 { return f.size }

// Alignment returns the alignment of tensors in bytes.
func (f *File) Alignment() int64 { return f.alignment }

// HeaderBytes returns the length of what comes before the weights.
func (f *File) HeaderBytes() int64 { return f.dataStart }

// Header returns a reader of what comes before the weights.
func (f *File) Header() *io.SectionReader { return io.NewSectionReader(f.r, 0, f.dataStart) }

// Arch returns general.architecture, or "".
func (f *File) Arch() string {
	s, _ := f.String("general.architecture")
	return s
}

// Keys returns the metadata keys in file order.
func (f *File) Keys() []string {
	out := make([]string, len(f.keys))
	for i, k := range f.keys {
		out[i] = k.key
	}
	return out
}

// Kind describes the type of the value at key ("uint32", "array of string"), or
// returns "" if there is none.
func (f *File) Kind(key string) string {
	v := f.field(key)
	if v == nil {
		return ""
	}
	if v.kind == kindArray {
		return fmt.Sprintf("array of %d %s", v.count, v.elem)
	}
	return v.kind.String()
}

// String returns the string at key; ok is false if there is none or it is of
// another type (see Kind).
func (f *File) String(key string) (s string, ok bool) {
	v := f.field(key)
	if v == nil || v.kind != kindString {
		return "", false
	}
	return v.text, true
}

// Uint returns the integer at key, of whatever width; ok is false if there is
// none, it is negative or of another type.
func (f *File) Uint(key string) (n uint64, ok bool) {
	v := f.field(key)
	if v == nil {
		return 0, false
	}
	switch v.kind {
	case kindUint8, kindUint16, kindUint32, kindUint64:
		return v.bits, true
	case kindInt8:
		return v.bits, int8(v.bits) >= 0
	case kindInt16:
		return v.bits, int16(v.bits) >= 0
	case kindInt32:
		return v.bits, int32(v.bits) >= 0
	case kindInt64:
		return v.bits, int64(v.bits) >= 0
	default:
		return 0, false
	}
}

// Float returns the floating-point number at key; ok is false if there is none
// or it is of another type.
func (f *File) Float(key string) (x float64, ok bool) {
	v := f.field(key)
	switch {
	case v == nil:
		return 0, false
	case v.kind == kindFloat32:
		return float64(math.Float32frombits(uint32(v.bits))), true
	case v.kind == kindFloat64:
		return math.Float64frombits(v.bits), true
	default:
		return 0, false
	}
}

// Bool returns the truth value at key; ok is false if there is none or it is of
// another type.
func (f *File) Bool(key string) (b, ok bool) {
	v := f.field(key)
	if v == nil || v.kind != kindBool {
		return false, false
	}
	return v.bits != 0, true
}

// Len returns the number of elements of the array at key, or -1 if there is none.
func (f *File) Len(key string) int {
	v := f.field(key)
	if v == nil || v.kind != kindArray {
		return -1
	}
	return int(v.count)
}

// Strings reads the array of strings at key; nil if there is none or it is of
// another type. All strings share one allocation.
func (f *File) Strings(key string) ([]string, error) {
	v := f.field(key)
	if v == nil || v.kind != kindArray || v.elem != kindString {
		return nil, nil
	}
	var b strings.Builder
	b.Grow(int(v.end - v.value))
	if _, err := io.CopyN(&b, io.NewSectionReader(f.r, v.value, v.end-v.value), v.end-v.value); err != nil {
		return nil, fmt.Errorf("read key %q at byte %d: %w", v.key, v.value, noEOF(err))
	}
	rest := b.String()
	out := make([]string, v.count)
	for i := range out {
		// The parser has checked the lengths, but not in these bytes if somebody
		// writes to the file.
		var n uint64
		if len(rest) >= 8 {
			n, rest = binary.LittleEndian.Uint64([]byte(rest[:8])), rest[8:]
		} else {
			n = math.MaxUint64
		}
		if n > uint64(len(rest)) {
			return nil, fmt.Errorf("key %q: element %d changed since the file was opened", key, i)
		}
		out[i], rest = rest[:n], rest[n:]
	}
	return out, nil
}

// Int32s reads the array of 32-bit integers at key; nil if there is none or it
// is of another type. Unsigned elements are converted.
func (f *File) Int32s(key string) ([]int32, error) {
	v := f.field(key)
	if v == nil || v.kind != kindArray || (v.elem != kindInt32 && v.elem != kindUint32) {
		return nil, nil
	}
	raw, err := f.raw(v)
	if err != nil {
		return nil, err
	}
	out := make([]int32, v.count)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return out, nil
}

// Float32s reads the array of 32-bit floats at key; nil if there is none or it
// is of another type.
func (f *File) Float32s(key string) ([]float32, error) {
	v := f.field(key)
	if v == nil || v.kind != kindArray || v.elem != kindFloat32 {
		return nil, nil
	}
	raw, err := f.raw(v)
	if err != nil {
		return nil, err
	}
	out := make([]float32, v.count)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return out, nil
}

// Tensors returns the tensors in file order. The caller must not change them.
func (f *File) Tensors() []Tensor { return f.tensors }

// Tensor returns the tensor with this name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Data returns a reader of the bytes of t, which must come from this file.
func (f *File) Data(t Tensor) *io.SectionReader {
	return io.NewSectionReader(f.r, t.Offset, t.Size)
}

func (f *File) data(t Tensor) io.Reader { return f.Data(t) }

func (f *File) field(key string) *field {
	i, ok := f.byKey[key]
	if !ok {
		return nil
	}
	return &f.keys[i]
}

// raw reads the elements of an array; the parser has bounded their size.
func (f *File) raw(v *field) ([]byte, error) {
	b := make([]byte, v.end-v.value)
	if _, err := f.r.ReadAt(b, v.value); err != nil {
		return nil, fmt.Errorf("read key %q at byte %d: %w", v.key, v.value, noEOF(err))
	}
	return b, nil
}

// ChatTemplate returns the file's Jinja chat template, or "".
func (f *File) ChatTemplate() string {
	s, _ := f.String("tokenizer.chat_template")
	return strings.TrimSpace(s)
}

// noEOF turns the end of input inside a value into io.ErrUnexpectedEOF.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
