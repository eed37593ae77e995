package health

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Xid is one error that NVIDIA's driver reported.
type Xid struct {
	PCI  string // of the GPU, in any notation
	Code int
	Text string // what the driver says besides; may be empty
}

// ParseXid reads a line of the kernel log such as
//
//	NVRM: Xid (PCI:0000:3b:00): 48, pid=1234, name=kevlard, An uncorrectable double bit error
//
// with or without what syslog writes before it. It reports false for any other line.
func ParseXid(line string) (Xid, bool) {
	if len(line) > maxLine {
		line = line[:maxLine]
	}
	_, rest, ok := strings.Cut(line, "NVRM: Xid (")
	if !ok {
		return Xid{}, false
	}
	at, rest, ok := strings.Cut(rest, "): ")
	if !ok {
		return Xid{}, false
	}
	at = strings.TrimPrefix(at, "PCI:") // old drivers leave it out
	if !validPCI(at) {
		return Xid{}, false
	}
	number, text, _ := strings.Cut(rest, ",")
	code, err := strconv.ParseUint(strings.TrimSpace(number), 10, 16)
	if err != nil || code == 0 {
		return Xid{}, false
	}
	return Xid{PCI: slot(at), Code: int(code), Text: clip(text)}, true
}

// validPCI reports whether s is a PCI address: two or three fields of hex digits.
func validPCI(s string) bool {
	fields := strings.Split(strings.SplitN(s, ".", 2)[0], ":")
	if len(fields) != 2 && len(fields) != 3 {
		return false
	}
	for _, f := range fields {
		if len(f) < 1 || len(f) > 8 {
			return false
		}
		if _, err := strconv.ParseUint(f, 16, 32); err != nil {
			return false
		}
	}
	return true
}

// clip bounds what a driver says, and keeps it printable.
func clip(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)
	for len(s) > maxText {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	return strings.TrimSpace(s)
}

// meaning is what an Xid asks for.
type meaning struct {
	state State
	what  string
}

// meaningOf looks an Xid up. What is not listed is only reported. The actions are those
// of NVIDIA's catalogue (see the package comment), its names are in capitals here:
//
//   - drain: RESET_GPU, RESTART_BM (reboot), CHECK_MECHANICALS, and 48 with its details
//     171 and 172, whose workflow ends in a reset or a reboot;
//   - avoid: 94 (RESTART_APP; a reset when convenient) and 63 and 92 (IGNORE, and yet
//     signs of failing memory); links between GPUs (74, 144 to 150), which need a reset
//     and which no stage uses;
//   - report: RESTART_APP and IGNORE, above all 13, 31, 43 and 45, which applications cause.
func meaningOf(x Xid) meaning {
	switch x.Code {
	case 46:
		return meaning{Drain, "the GPU stopped processing"}
	case 48:
		return meaning{Drain, "an uncorrectable memory error"}
	case 54:
		return meaning{Drain, "its power cable is not connected"}
	case 62, 169:
		return meaning{Drain, "a micro-controller of the GPU halted"}
	case 63:
		return meaning{Avoid, "a memory row or page was taken out of use, which takes effect with the next reset"}
	case 64:
		return meaning{Drain, "a memory row or page could not be taken out of use"}
	case 74, 144, 145, 146, 147, 148, 149, 150:
		return meaning{Avoid, "an error of its NVLink"}
	case 79:
		return meaning{Drain, "the GPU has fallen off the bus"}
	case 92:
		return meaning{Avoid, "many corrected memory errors"}
	case 94:
		return meaning{Avoid, "a memory error that only the process that used it has seen"}
	case 95:
		return meaning{Drain, "a memory error that other processes may have seen"}
	case 109:
		return meaning{Drain, "a context switch timed out"}
	case 110:
		return meaning{Drain, "a security fault"}
	case 119, 120:
		return meaning{Drain, "the GPU's system processor does not answer"}
	case 136:
		return meaning{Avoid, "a link could not be trained"}
	case 140:
		return meaning{Drain, "an uncorrectable memory error that was not contained"}
	case 143:
		return meaning{Drain, "the GPU could not be initialised"}
	case 154:
		return recovery(x.Text)
	case 155, 156:
		return meaning{Avoid, "a part of the GPU was taken out of use, which takes effect with the next reset"}
	case 157:
		return meaning{Avoid, "a part of the GPU could not be taken out of use"}
	case 158, 167:
		return meaning{Drain, "a fatal timeout"}
	case 171:
		return meaning{Drain, "an uncorrectable error of its DRAM"}
	case 172:
		return meaning{Drain, "an uncorrectable error of its SRAM"}
	}
	return meaning{OK, "most likely an application's"}
}

// recovery reads Xid 154, which sums up what others ask for: "GPU recovery action changed
// from 0x0 (None) to 0x2 (Node Reboot Required)". A text that can't be read drains.
func recovery(text string) meaning {
	_, to, _ := strings.Cut(text, " to ")
	i, j := strings.IndexByte(to, '('), strings.LastIndexByte(to, ')')
	if i < 0 || j < i {
		return meaning{Drain, "the driver asks for an action"}
	}
	action := to[i+1 : j]
	switch action {
	case "None":
		return meaning{OK, "the driver asks for nothing any more"}
	case "Drain P2P":
		return meaning{Avoid, "the driver asks for: " + action}
	}
	return meaning{Drain, "the driver asks for: " + action}
}
