package archtest

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/kevlard/kevlard"

// source is one parsed file.
type source struct {
	pkg  string // its folder in the module; "" is the root
	name string
	test bool
	fset *token.FileSet
	ast  *ast.File
	text []byte
}

// at names a place for people.
func (s source) at(n ast.Node) string { return s.fset.Position(n.Pos()).String() }

// imported lists the paths that the file imports.
func (s source) imported(t *testing.T) []string {
	var out []string
	for _, i := range s.ast.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

// tree parses every Go file of the module, whatever its build tags.
func tree(t *testing.T) []source {
	t.Helper()
	const root = "../.."
	var out []source
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p != root && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "vendor") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || name == "deps_tmp.go" {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(p))
		if err != nil {
			return err
		}
		s := source{pkg: strings.TrimPrefix(filepath.ToSlash(rel), "."), name: name, test: strings.HasSuffix(name, "_test.go"), fset: token.NewFileSet(), text: text}
		s.ast, err = parser.ParseFile(s.fset, path.Join(s.pkg, name), text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		out = append(out, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// code is tree without tests.
func code(t *testing.T) []source {
	return slices.DeleteFunc(tree(t), func(s source) bool { return s.test })
}

func TestImports(t *testing.T) {
	table := imports()
	seen := map[string]bool{}
	used := map[string]map[string]bool{}
	for _, s := range tree(t) {
		if !seen[s.pkg] {
			seen[s.pkg] = true
			used[s.pkg] = map[string]bool{}
			if _, ok := table[s.pkg]; !ok {
				t.Errorf("package %q has no row in the import table", s.pkg)
			}
		}
		if s.test {
			continue
		}
		for _, p := range s.imported(t) {
			if p != module && !strings.HasPrefix(p, module+"/") {
				continue
			}
			to := strings.TrimPrefix(strings.TrimPrefix(p, module), "/")
			used[s.pkg][to] = true
			if !slices.Contains(table[s.pkg], to) {
				t.Errorf("%s/%s imports %q: not allowed by the import table", s.pkg, s.name, to)
			}
		}
	}
	for pkg := range table {
		if !seen[pkg] {
			t.Errorf("the import table has a row for %q, which does not exist", pkg)
		}
	}
}

func TestPurity(t *testing.T) {
	for _, s := range code(t) {
		if !slices.Contains(pure(), s.pkg) {
			continue
		}
		for _, p := range s.imported(t) {
			ours := p == module || strings.HasPrefix(p, module+"/")
			third := strings.Contains(strings.Split(p, "/")[0], ".") && !ours
			switch {
			case third && !(s.pkg == "protocol" && strings.HasPrefix(p, "github.com/fxamacker/cbor")):
				t.Errorf("%s/%s imports %s: pure packages import no libraries", s.pkg, s.name, p)
			case !ours && !third && !slices.Contains(pureStd(), p):
				t.Errorf("%s/%s imports %s: not among what pure packages may use", s.pkg, s.name, p)
			}
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.ChanType, *ast.SelectStmt, *ast.SendStmt:
				t.Errorf("%s: %T in a pure package", s.at(n), n)
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clocks(), n.Sel.Name) {
					t.Errorf("%s: time.%s in a pure package", s.at(n), n.Sel.Name)
				}
			}
			return true
		})
	}
}

// TestPureDependencies follows the imports of the pure packages to the end.
func TestPureDependencies(t *testing.T) {
	args := []string{"list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}
	for _, p := range pure() {
		args = append(args, path.Join(module, p))
	}
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatalf("go %v: %v", args, err)
	}
	for _, p := range strings.Fields(string(out)) {
		ours := p == module || strings.HasPrefix(p, module+"/")
		switch {
		case ours && !slices.Contains(pure(), strings.TrimPrefix(strings.TrimPrefix(p, module), "/")):
			t.Errorf("a pure package depends on %s", p)
		case !ours && !strings.HasPrefix(p, "github.com/fxamacker/cbor/") && !strings.HasPrefix(p, "github.com/x448/float16"):
			t.Errorf("a pure package depends on %s", p)
		}
	}
}

func TestQuarantine(t *testing.T) {
	gomod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range quarantine() {
		if !bytes.Contains(gomod, []byte(q.module)) {
			t.Errorf("%s is quarantined and not required by go.mod", q.module)
		}
	}
	for _, s := range code(t) {
		for _, p := range s.imported(t) {
			for _, q := range quarantine() {
				if strings.HasPrefix(p, q.module) && !slices.Contains(q.in, s.pkg) {
					t.Errorf("%s/%s imports %s: only %v may, because %s", s.pkg, s.name, p, q.in, q.why)
				}
			}
		}
	}
}

func TestOnePackageComment(t *testing.T) {
	comments := map[string][]string{}
	onlyTests := map[string]bool{}
	for _, s := range tree(t) {
		if _, ok := onlyTests[s.pkg]; !ok {
			onlyTests[s.pkg] = true
		}
		onlyTests[s.pkg] = onlyTests[s.pkg] && s.test
	}
	for _, s := range tree(t) {
		if s.test && !onlyTests[s.pkg] {
			continue
		}
		if _, ok := comments[s.pkg]; !ok {
			comments[s.pkg] = nil
		}
		if s.ast.Doc != nil && strings.TrimSpace(s.ast.Doc.Text()) != "" {
			comments[s.pkg] = append(comments[s.pkg], s.name)
		}
	}
	for pkg, files := range comments {
		if len(files) != 1 {
			t.Errorf("package %q has package comments in %v, want exactly one", pkg, files)
		}
	}
}

func TestOneDoorToC(t *testing.T) {
	doors := cgo()
	found := map[string]bool{}
	for _, s := range tree(t) {
		if !slices.Contains(s.imported(t), "C") {
			continue
		}
		found[s.pkg] = true
		if doors[s.pkg] != s.name {
			t.Errorf("%s/%s imports \"C\": only %v do", s.pkg, s.name, doors)
		}
	}
	for pkg, file := range doors {
		if !found[pkg] {
			t.Errorf("%s/%s is listed as importing \"C\" and does not", pkg, file)
		}
	}
}

func TestNoReplace(t *testing.T) {
	gomod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(gomod)) {
		if strings.HasPrefix(strings.TrimSpace(line), "replace") {
			t.Errorf("go.mod: %s: `go install` of a tagged version would not see it", strings.TrimSpace(line))
		}
	}
}

func TestNoInit(t *testing.T) {
	for _, s := range tree(t) {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s: init() runs where nobody sees it: call a function", s.at(f))
			}
		}
	}
}

func TestNoMutableGlobals(t *testing.T) {
	accepted := mutable()
	for _, s := range code(t) {
		for _, d := range s.ast.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, spec := range g.Specs {
				v := spec.(*ast.ValueSpec)
				embedded := strings.Contains(comment(s, g), "//go:embed") || strings.Contains(comment(s, v), "//go:embed")
				for i, n := range v.Names {
					key := s.pkg + "." + n.Name
					if _, ok := accepted[key]; ok {
						delete(accepted, key)
						continue
					}
					if n.Name == "_" || embedded || isError(n.Name) || i < len(v.Values) && isPattern(v.Values[i]) {
						continue
					}
					t.Errorf("%s: package variable %s: pass it, or list it with its reason", s.at(n), n.Name)
				}
			}
		}
	}
	for key := range accepted {
		t.Errorf("%s is an accepted variable and does not exist", key)
	}
}

// comment returns the raw comment above a declaration.
func comment(s source, n ast.Node) string {
	var doc *ast.CommentGroup
	switch n := n.(type) {
	case *ast.GenDecl:
		doc = n.Doc
	case *ast.ValueSpec:
		doc = n.Doc
	}
	if doc == nil {
		return ""
	}
	return string(s.text[s.fset.Position(doc.Pos()).Offset:s.fset.Position(doc.End()).Offset])
}

func isError(name string) bool {
	return strings.HasPrefix(name, "Err") || strings.HasPrefix(name, "err")
}

// isPattern reports whether a value is a compiled regular expression.
func isPattern(e ast.Expr) bool {
	c, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := c.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := f.X.(*ast.Ident)
	return ok && x.Name == "regexp" && f.Sel.Name == "MustCompile"
}

func TestFilesAreShort(t *testing.T) {
	for _, s := range tree(t) {
		if n := bytes.Count(s.text, []byte("\n")); n > maxLines {
			t.Errorf("%s/%s has %d lines, at most %d: it holds more than one idea", s.pkg, s.name, n, maxLines)
		}
	}
}

// TestNames refuses packages whose name accepts anything.
func TestNames(t *testing.T) {
	for _, s := range tree(t) {
		if slices.Contains([]string{"util", "utils", "common", "helpers", "helper", "misc", "types"}, path.Base(s.pkg)) {
			t.Errorf("package %q: name the idea", s.pkg)
		}
	}
}
