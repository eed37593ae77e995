package model

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// valueKind is GGUF's number of a metadata value's type.
type valueKind uint32

const (
	kindUint8 valueKind = iota
	kindInt8
	kindUint16
	kindInt16
	kindUint32
	kindInt32
	kindFloat32
	kindBool
	kindString
	kindArray
	kindUint64
	kindInt64
	kindFloat64
)

// String returns the type's name.
func (k valueKind) String() string {
	names := [...]string{
		"uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool",
		"string", "array", "uint64", "int64", "float64",
	}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("value type %d", uint32(k))
}

// width returns the bytes of a fixed-size value, 0 for strings, arrays and
// unknown types.
func (k valueKind) width() uint64 {
	switch k {
	case kindUint8, kindInt8, kindBool:
		return 1
	case kindUint16, kindInt16:
		return 2
	case kindUint32, kindInt32, kindFloat32:
		return 4
	case kindUint64, kindInt64, kindFloat64:
		return 8
	default:
		return 0
	}
}

// NewFile parses the header of a GGUF file of size bytes. Errors name the byte
// offset and the key or tensor. Memory is bounded by the file's size and by this
// package's limits.
func NewFile(r io.ReaderAt, size int64) (*File, error) {
	s := &scanner{br: bufio.NewReaderSize(io.NewSectionReader(r, 0, size), 64<<10), end: min(size, maxMetaBytes), size: size}
	f := &File{r: r, size: size, alignment: 32}
	nTensors, nKeys, err := f.parsePreamble(s)
	if err != nil {
		return nil, err
	}
	if err := f.parseKeys(s, nKeys); err != nil {
		return nil, err
	}
	if err := f.parseTensors(s, nTensors); err != nil {
		return nil, err
	}
	return f, f.checkLayout()
}

func (f *File) parsePreamble(s *scanner) (nTensors, nKeys uint64, err error) {
	magic, err := s.uint(4)
	if err != nil {
		return 0, 0, s.fail("magic", err)
	}
	if magic != 0x46554747 { // "GGUF"
		return 0, 0, s.fail("magic", fmt.Errorf("%#08x is not GGUF's", magic))
	}
	version, err := s.uint(4)
	if err != nil {
		return 0, 0, s.fail("version", err)
	}
	switch {
	case version == 2 || version == 3:
		f.version = uint32(version)
	case version&0xffff == 0 && version != 0:
		return 0, 0, s.fail("version", errors.New("the file is big-endian: only little-endian files are supported"))
	default:
		return 0, 0, s.fail("version", fmt.Errorf("GGUF version %d: only 2 and 3 are supported", version))
	}
	if nTensors, err = s.uint(8); err == nil {
		nKeys, err = s.uint(8)
	}
	if err != nil {
		return 0, 0, s.fail("counts", err)
	}
	if nTensors > maxTensors {
		return 0, 0, s.fail("tensor count", fmt.Errorf("%d is over the limit of %d", nTensors, maxTensors))
	}
	if nKeys > maxKeys {
		return 0, 0, s.fail("key count", fmt.Errorf("%d is over the limit of %d", nKeys, maxKeys))
	}
	return nTensors, nKeys, nil
}

func (f *File) parseKeys(s *scanner, n uint64) error {
	f.byKey = make(map[string]int)
	for i := range n {
		v := field{start: s.at}
		var err error
		if v.key, err = s.text(maxKeyBytes); err != nil {
			return s.fail(fmt.Sprintf("name of key %d", i), err)
		}
		if _, dup := f.byKey[v.key]; dup {
			return s.fail(fmt.Sprintf("key %q", v.key), errors.New("occurs twice"))
		}
		if err := s.value(&v); err != nil {
			return s.fail(fmt.Sprintf("key %q", v.key), err)
		}
		v.end = s.at
		f.byKey[v.key] = len(f.keys)
		f.keys = append(f.keys, v)
	}
	if f.Kind("general.alignment") == "" {
		return nil
	}
	a, ok := f.Uint("general.alignment")
	if !ok || a == 0 || a&(a-1) != 0 || a > maxAlignment {
		return s.fail("general.alignment", fmt.Errorf("%d (%s): want a power of two up to %d", a, f.Kind("general.alignment"), maxAlignment))
	}
	f.alignment = int64(a)
	return nil
}

func (f *File) parseTensors(s *scanner, n uint64) error {
	f.byName = make(map[string]int)
	for i := range n {
		name, err := s.text(maxTensorName)
		if err != nil {
			return s.fail(fmt.Sprintf("name of tensor %d", i), err)
		}
		if _, dup := f.byName[name]; dup {
			return s.fail(fmt.Sprintf("tensor %q", name), errors.New("occurs twice"))
		}
		t, err := s.tensor(name)
		if err != nil {
			return s.fail(fmt.Sprintf("tensor %q", name), err)
		}
		if t.Offset%f.alignment != 0 {
			return s.fail(fmt.Sprintf("tensor %q", name), fmt.Errorf("offset %d is no multiple of the alignment %d", t.Offset, f.alignment))
		}
		f.byName[name] = len(f.tensors)
		f.tensors = append(f.tensors, t)
	}
	f.dataStart = alignUp(s.at, f.alignment)
	return nil
}

// checkLayout makes tensor offsets absolute and checks that tensors lie in the
// file and do not overlap.
func (f *File) checkLayout() error {
	order := make([]int, len(f.tensors))
	for i := range f.tensors {
		order[i] = i
		t := &f.tensors[i]
		if room := f.size - f.dataStart; t.Offset > room || t.Size > room-t.Offset {
			return fmt.Errorf("gguf: tensor %q: %d bytes at offset %d of the data at byte %d reach past the file's end at %d: the file is cut short",
				t.Name, t.Size, t.Offset, f.dataStart, f.size)
		}
		t.Offset += f.dataStart
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(f.tensors[a].Offset, f.tensors[b].Offset) })
	for i := 1; i < len(order); i++ {
		a, b := f.tensors[order[i-1]], f.tensors[order[i]]
		if a.Offset+a.Size > b.Offset {
			return fmt.Errorf("gguf: tensor %q at byte %d overlaps tensor %q, %d bytes at byte %d", b.Name, b.Offset, a.Name, a.Size, a.Offset)
		}
	}
	return nil
}

func alignUp(n, a int64) int64 { return (n + a - 1) / a * a }

// scanner reads the header in order and knows where it is.
type scanner struct {
	br   *bufio.Reader
	at   int64
	end  int64 // the header may not reach further
	size int64
}

func (s *scanner) fail(what string, err error) error {
	return fmt.Errorf("gguf: byte %d: %s: %w", s.at, what, noEOF(err))
}

// need checks that n more bytes can be part of the header.
func (s *scanner) need(n uint64) error {
	if n <= uint64(s.end-s.at) {
		return nil
	}
	if n > uint64(s.size-s.at) {
		return fmt.Errorf("%d bytes do not fit in the %d that are left of the file", n, s.size-s.at)
	}
	return fmt.Errorf("the header is over the limit of %d bytes", int64(maxMetaBytes))
}

func (s *scanner) uint(width int) (uint64, error) {
	if err := s.need(uint64(width)); err != nil {
		return 0, err
	}
	var b [8]byte
	n, err := io.ReadFull(s.br, b[:width])
	s.at += int64(n)
	return binary.LittleEndian.Uint64(b[:]), err
}

func (s *scanner) skip(n uint64) error {
	if err := s.need(n); err != nil {
		return err
	}
	d, err := s.br.Discard(int(n))
	s.at += int64(d)
	return err
}

func (s *scanner) text(most uint64) (string, error) {
	n, err := s.uint(8)
	if err != nil {
		return "", err
	}
	if err := s.need(n); err != nil {
		return "", err
	}
	if n > most {
		return "", fmt.Errorf("string of %d bytes is over the limit of %d", n, most)
	}
	b := make([]byte, n)
	d, err := io.ReadFull(s.br, b)
	s.at += int64(d)
	return string(b), err
}

// value reads a metadata value; the elements of an array are only measured.
func (s *scanner) value(v *field) error {
	kind, err := s.uint(4)
	if err != nil {
		return err
	}
	v.kind, v.value = valueKind(kind), s.at
	switch {
	case v.kind == kindString:
		v.text, err = s.text(maxTextBytes)
		return err
	case v.kind == kindArray:
		return s.array(v)
	case v.kind.width() == 0:
		return fmt.Errorf("unknown value type %d", kind)
	}
	v.bits, err = s.uint(int(v.kind.width()))
	if err == nil && v.kind == kindBool && v.bits > 1 {
		return fmt.Errorf("truth value %d: want 0 or 1", v.bits)
	}
	return err
}

func (s *scanner) array(v *field) error {
	elem, err := s.uint(4)
	if err != nil {
		return err
	}
	if v.count, err = s.uint(8); err != nil {
		return err
	}
	v.elem, v.value = valueKind(elem), s.at
	width := v.elem.width()
	if v.elem == kindString {
		width = 8 // each string has at least its length
	}
	if width == 0 {
		return fmt.Errorf("array of %s is not supported", v.elem)
	}
	if v.count > uint64(s.size)/width {
		return fmt.Errorf("array of %d %s does not fit in the file", v.count, v.elem)
	}
	if v.elem == kindString && v.count > maxStrings {
		return fmt.Errorf("array of %d strings is over the limit of %d", v.count, maxStrings)
	}
	if v.elem != kindString {
		return s.skip(v.count * width)
	}
	for i := range v.count {
		n, err := s.uint(8)
		if err == nil {
			err = s.skip(n)
		}
		if err != nil {
			return fmt.Errorf("element %d: %w", i, err)
		}
	}
	return nil
}

// tensor reads a tensor's info after its name; Offset is relative to the data.
func (s *scanner) tensor(name string) (Tensor, error) {
	t := Tensor{Name: name}
	dims, err := s.uint(4)
	if err != nil {
		return t, err
	}
	if dims == 0 || dims > maxDims {
		return t, fmt.Errorf("%d dimensions: want 1 to %d", dims, maxDims)
	}
	t.Shape = make([]uint64, dims)
	for i := range t.Shape {
		if t.Shape[i], err = s.uint(8); err != nil {
			return t, err
		}
	}
	kind, err := s.uint(4)
	if err != nil {
		return t, err
	}
	t.Type = TensorType(kind)
	if t.Size, err = tensorBytes(t.Type, t.Shape); err != nil {
		return t, err
	}
	off, err := s.uint(8)
	if err != nil {
		return t, err
	}
	if off > uint64(s.size) {
		return t, fmt.Errorf("offset %d is past the file's end at %d: the file is cut short or damaged", off, s.size)
	}
	t.Offset = int64(off)
	return t, nil
}
