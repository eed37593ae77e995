package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Serve names a model that this node may be given layers of.
type Serve struct {
	Name  string // as clients ask for it
	Share int    // of the work, against other models; 1 to maxShare
}

const (
	maxShare  = 1000 // of a model
	maxServed = 64   // models that a node tells others of
)

// parseServeText reads "NAME:SHARE,NAME" or nothing; a share that is left out is 1. A
// colon that no number follows belongs to the name.
func parseServeText(text string) []Serve {
	var list []Serve
	for part := range strings.SplitSeq(text, ",") {
		s := Serve{Name: strings.TrimSpace(part), Share: 1}
		if i := strings.LastIndexByte(s.Name, ':'); i >= 0 {
			if n, err := strconv.Atoi(s.Name[i+1:]); err == nil {
				s.Name, s.Share = s.Name[:i], n
			}
		}
		if s.Name != "" {
			list = append(list, s)
		}
	}
	return list
}

// serveText is what parseServeText reads.
func serveText(list []Serve) string {
	var parts []string
	for _, s := range list {
		parts = append(parts, fmt.Sprintf("%s:%d", s.Name, s.Share))
	}
	return strings.Join(parts, ",")
}

// serveValue reads [{name = "...", share = 2}]; a share that is left out is 1.
func serveValue(v any) ([]Serve, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("%s is given: want an array of {name, share}", kindOf(v))
	}
	out := make([]Serve, 0, len(list))
	for i, e := range list {
		entry, ok := e.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("entry %d is %s: want {name, share}", i+1, kindOf(e))
		}
		s := Serve{Share: 1}
		parts := []Field{{Key: "name", dst: &s.Name}, {Key: "share", dst: &s.Share}}
		for key, value := range sorted(entry) {
			j := slices.IndexFunc(parts, func(f Field) bool { return f.Key == key })
			if j < 0 {
				return nil, fmt.Errorf("entry %d has an unknown key %q: want name and share", i+1, key)
			}
			if err := parts[j].setValue(value); err != nil {
				return nil, fmt.Errorf("entry %d: %s: %w", i+1, key, err)
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// checkServe joins what is wrong with the entries.
func checkServe(list []Serve) error {
	if len(list) > maxServed {
		return fmt.Errorf("%d models are named: want at most %d", len(list), maxServed)
	}
	var errs []error
	for i, s := range list {
		switch {
		case s.Name == "":
			errs = append(errs, fmt.Errorf("entry %d: name is empty: give that of a model, as kevlard model ls shows it", i+1))
		case s.Share < 1 || s.Share > maxShare:
			errs = append(errs, fmt.Errorf("entry %d: share = %d: want 1 to %d", i+1, s.Share, maxShare))
		case slices.ContainsFunc(list[:i], func(b Serve) bool { return b.Name == s.Name }):
			errs = append(errs, fmt.Errorf("entry %d: %q was named before", i+1, s.Name))
		}
	}
	return errors.Join(errs...)
}
