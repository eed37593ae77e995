package archtest

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// fuzzed lists what reads bytes that somebody else made, and the fuzz targets that it
// has for them. Files of the machine's administrator count: an error there must be
// named, and a damaged one must not bring a host down.
func fuzzed() map[string][]string {
	return map[string][]string{
		"":                   {"FuzzParseDigest"},
		"api":                {"FuzzBody", "FuzzChatBody", "FuzzControl", "FuzzEnvelope", "FuzzParseKeys", "FuzzPlace"},
		"client":             {"FuzzEvents"},
		"cmd/kevlard":        {"FuzzPacket", "FuzzParseSecret"},
		"cmd/kevlard/config": {"FuzzLoad"},
		"daemon":             {"FuzzCalls", "FuzzKeyring", "FuzzRecord"},
		"engine":             {"FuzzForward", "FuzzFrame"},
		"gpu":                {"FuzzKernelXid", "FuzzParseReading", "FuzzTargets"},
		"gpu/health":         {"FuzzParseXid"},
		"internal/docrun":    {"FuzzCompare"},
		"kvstream/codec":     {"FuzzDecode"},
		"kvstream/prefer":    {"FuzzSplit"},
		"kvstream/tcp":       {"FuzzGreeting", "FuzzInput"},
		"membership":         {"FuzzDecode", "FuzzMeta", "FuzzPeers"},
		"mesh":               {"FuzzDecodeHello", "FuzzDecodeProof", "FuzzReadFrame"},
		"model":              {"FuzzDecoder", "FuzzNewFile", "FuzzParseHeader", "FuzzReadParts", "FuzzReadRecord"},
		"model/chat":         {"FuzzNew", "FuzzRender"},
		"node/audit":         {"FuzzDifferRows"},
		"protocol":           {"FuzzDecodeFrame", "FuzzDecodeMessage", "FuzzDecodeRows"},
		"rdma":               {"FuzzMessage", "FuzzRails"},
		"rdma/flow":          {"FuzzImmediates", "FuzzPlace", "FuzzSetup"},
		"weights":            {"FuzzAnswer", "FuzzPieceHeader", "FuzzRequest"},
	}
}

// readers lists, for packages that read many kinds of documents, the files that may decode
// them, and the target of each: a new kind that is read elsewhere would go unnoticed.
func readers() map[string]map[string]string {
	return map[string]map[string]string{
		"daemon": {"calls.go": "FuzzCalls", "keyring.go": "FuzzKeyring", "record.go": "FuzzRecord"},
	}
}

// unfuzzed lists the packages that call a decoder and have no target, and why.
func unfuzzed() map[string]string {
	return map[string]string{
		"internal/devmesh":         "reads what its own daemons and the person at the shell wrote",
		"internal/devmesh/load":    "a load generator that reads what its own daemons answer",
		"internal/ringbench":       "a benchmark that reads its own members",
		"internal/toymodel":        "a model for tests",
		"kvstream/mover/movertest": "a test of movers",
		"internal/sim":             "hosts of one process",
		"scripts/compare":          "a benchmark that reads the other program's answers",
	}
}

// decodes reports whether a file calls what turns bytes into values.
func decodes(s source) (at ast.Node) {
	ast.Inspect(s.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		of := ""
		switch x := sel.X.(type) {
		case *ast.Ident:
			of = x.Name
		case *ast.SelectorExpr: // binary.BigEndian
			of = x.Sel.Name
		}
		switch name := sel.Sel.Name; {
		case of == "json" && (name == "Unmarshal" || name == "NewDecoder"),
			of == "bufio" && (name == "NewScanner" || name == "NewReader" || name == "NewReaderSize"),
			of == "hex" && strings.HasPrefix(name, "Decode"),
			(of == "BigEndian" || of == "LittleEndian") && strings.HasPrefix(name, "Uint"),
			name == "Unmarshal" && of != "json", name == "UnmarshalFirst", name == "UnmarshalText":
			at = call
		}
		return at == nil
	})
	return at
}

// TestDecodersAreFuzzed: who decodes has fuzz targets, and they are those of the
// table, so that none goes unnoticed.
func TestDecodersAreFuzzed(t *testing.T) {
	want, excused, used := fuzzed(), unfuzzed(), map[string]bool{}
	have := map[string][]string{}
	for _, s := range tree(t) {
		if s.test {
			for _, d := range s.ast.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Fuzz") {
					have[s.pkg] = append(have[s.pkg], fn.Name.Name)
				}
			}
			continue
		}
		if strings.HasPrefix(s.pkg, "e2e") {
			continue // tests, with files of their own
		}
		at := decodes(s)
		if files := readers()[s.pkg]; at != nil && files != nil && !slices.Contains(want[s.pkg], files[s.name]) {
			t.Errorf("%s: decodes, and no fuzz target is listed for it in readers()", s.at(at))
		}
		if at == nil || len(want[s.pkg]) > 0 {
			continue
		}
		if excused[s.pkg] == "" {
			t.Errorf("%s: package %q decodes and has no fuzz target: write one and list it in fuzzed()", s.at(at), s.pkg)
		}
		used[s.pkg] = true
	}
	for pkg, targets := range have {
		slices.Sort(targets)
		if !slices.Equal(targets, want[pkg]) {
			t.Errorf("package %q has the fuzz targets %q, and %q in fuzzed()", pkg, targets, want[pkg])
		}
	}
	for pkg, targets := range want {
		if len(have[pkg]) == 0 {
			t.Errorf("package %q has none of the fuzz targets %q", pkg, targets)
		}
	}
	for pkg := range excused {
		if !used[pkg] {
			t.Errorf("package %q is listed in unfuzzed() and needs no excuse", pkg)
		}
	}
}
