package model

import (
	"fmt"
	"slices"
)

// TensorType is ggml's number of a storage format.
type TensorType uint32

// Formats that kevlard serves. The others are known by size only, so that files
// holding them can be checked and listed.
const (
	F32  TensorType = 0
	F16  TensorType = 1
	Q4_0 TensorType = 2
	Q8_0 TensorType = 8
	Q4_K TensorType = 12
	Q6_K TensorType = 14
	BF16 TensorType = 30
)

// layout is how a format packs values: Block consecutive values of a row take
// Bytes bytes.
type layout struct {
	name  string
	block uint64
	bytes uint64
}

// layoutOf returns the layout of t; its block is 0 if t is unknown.
func layoutOf(t TensorType) layout {
	switch t {
	case F32:
		return layout{"f32", 1, 4}
	case F16:
		return layout{"f16", 1, 2}
	case Q4_0:
		return layout{"q4_0", 32, 18}
	case 3:
		return layout{"q4_1", 32, 20}
	case 6:
		return layout{"q5_0", 32, 22}
	case 7:
		return layout{"q5_1", 32, 24}
	case Q8_0:
		return layout{"q8_0", 32, 34}
	case 9:
		return layout{"q8_1", 32, 36}
	case 10:
		return layout{"q2_k", 256, 84}
	case 11:
		return layout{"q3_k", 256, 110}
	case Q4_K:
		return layout{"q4_k", 256, 144}
	case 13:
		return layout{"q5_k", 256, 176}
	case Q6_K:
		return layout{"q6_k", 256, 210}
	case 15:
		return layout{"q8_k", 256, 292}
	case 16:
		return layout{"iq2_xxs", 256, 66}
	case 17:
		return layout{"iq2_xs", 256, 74}
	case 18:
		return layout{"iq3_xxs", 256, 98}
	case 19:
		return layout{"iq1_s", 256, 50}
	case 20:
		return layout{"iq4_nl", 32, 18}
	case 21:
		return layout{"iq3_s", 256, 110}
	case 22:
		return layout{"iq2_s", 256, 82}
	case 23:
		return layout{"iq4_xs", 256, 136}
	case 24:
		return layout{"i8", 1, 1}
	case 25:
		return layout{"i16", 1, 2}
	case 26:
		return layout{"i32", 1, 4}
	case 27:
		return layout{"i64", 1, 8}
	case 28:
		return layout{"f64", 1, 8}
	case 29:
		return layout{"iq1_m", 256, 56}
	case BF16:
		return layout{"bf16", 1, 2}
	case 34:
		return layout{"tq1_0", 256, 54}
	case 35:
		return layout{"tq2_0", 256, 66}
	case 39:
		return layout{"mxfp4", 32, 17}
	default:
		return layout{name: fmt.Sprintf("type %d", uint32(t))}
	}
}

// String returns the format's usual name in lower case, or "type N".
func (t TensorType) String() string { return layoutOf(t).name }

// Known reports whether the size of a tensor of this format can be computed.
func (t TensorType) Known() bool { return layoutOf(t).block != 0 }

// Supported reports whether kevlard computes with tensors of this format.
func (t TensorType) Supported() bool { return slices.Contains(supportedTypes(), t) }

// BlockValues returns how many consecutive values form a block, 0 if unknown.
func (t TensorType) BlockValues() uint64 { return layoutOf(t).block }

// BlockBytes returns how many bytes a block takes, 0 if unknown.
func (t TensorType) BlockBytes() uint64 { return layoutOf(t).bytes }

// ParseTensorType returns the served format with this name.
func ParseTensorType(name string) (TensorType, error) {
	for _, t := range supportedTypes() {
		if t.String() == name {
			return t, nil
		}
	}
	return 0, fmt.Errorf("tensor type %q: want one of %v", name, supportedTypes())
}

func supportedTypes() []TensorType { return []TensorType{F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q6_K} }

// tensorBytes returns the size in bytes of a tensor, or an error if the shape is
// impossible for the format or the size does not fit in an int64.
func tensorBytes(t TensorType, shape []uint64) (int64, error) {
	l := layoutOf(t)
	if l.block == 0 {
		return 0, fmt.Errorf("unknown tensor type %d", uint32(t))
	}
	if len(shape) == 0 || len(shape) > maxDims {
		return 0, fmt.Errorf("%d dimensions: want 1 to %d", len(shape), maxDims)
	}
	if shape[0]%l.block != 0 {
		return 0, fmt.Errorf("row of %d values is no multiple of the %d values in a block of %s", shape[0], l.block, l.name)
	}
	// The largest size times the largest block still fits in a uint64.
	const most = 1 << 54
	n := uint64(1)
	for i, d := range shape {
		if d == 0 {
			return 0, fmt.Errorf("dimension %d is 0", i)
		}
		if d > most/n {
			return 0, fmt.Errorf("shape %v has more than 2^54 values", shape)
		}
		n *= d
	}
	return int64(n / l.block * l.bytes), nil
}
