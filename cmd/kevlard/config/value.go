package config

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kevlard/kevlard"
)

// setText sets the field from a flag or an environment variable.
func (f Field) setText(text string) error {
	switch dst := f.dst.(type) {
	case *string:
		*dst = text
	case *bool:
		v, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is not a boolean: want true or false", text)
		}
		*dst = v
	case *int:
		v, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		*dst = v
	case *time.Duration:
		v, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%q is not a duration: want one such as 60s", text)
		}
		*dst = v
	case *[]string:
		*dst = nil
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				*dst = append(*dst, part)
			}
		}
	case *map[string]string:
		*dst = map[string]string{}
		for part := range strings.SplitSeq(text, ",") {
			name, value, ok := strings.Cut(part, "=")
			if !ok && text != "" {
				return fmt.Errorf("%q is not a label: want NAME=VALUE", part)
			}
			if ok {
				(*dst)[strings.TrimSpace(name)] = strings.TrimSpace(value)
			}
		}
	case *[]Assign:
		list, err := parseAssignText(text)
		if err != nil {
			return err
		}
		*dst = list
	case *[]Serve:
		*dst = parseServeText(text)
	}
	return nil
}

// parseAssignText reads "MODEL:LO-HI,MODEL:LO-HI", "auto" or nothing.
func parseAssignText(text string) ([]Assign, error) {
	if text == "" || text == "auto" {
		return nil, nil
	}
	var list []Assign
	for part := range strings.SplitSeq(text, ",") {
		i := strings.LastIndexByte(part, ':')
		if i < 0 {
			return nil, fmt.Errorf("%q is not a stage: want MODEL:LO-HI", part)
		}
		a := Assign{Model: strings.TrimSpace(part[:i])}
		lo, hi, ok := strings.Cut(part[i+1:], "-")
		var errLo, errHi error
		a.Layers.Lo, errLo = strconv.Atoi(lo)
		a.Layers.Hi, errHi = strconv.Atoi(hi)
		if !ok || errLo != nil || errHi != nil {
			return nil, fmt.Errorf("%q is not a stage: want MODEL:LO-HI", part)
		}
		list = append(list, a)
	}
	return list, nil
}

// setValue sets the field from a decoded TOML value.
func (f Field) setValue(v any) error {
	switch dst := f.dst.(type) {
	case *string:
		s, ok := v.(string)
		if !ok {
			return fmt.Errorf("%s is given: want a string", kindOf(v))
		}
		*dst = s
	case *bool:
		b, ok := v.(bool)
		if !ok {
			return fmt.Errorf("%s is given: want true or false", kindOf(v))
		}
		*dst = b
	case *int:
		n, ok := v.(int64)
		if !ok || n < math.MinInt || n > math.MaxInt {
			return fmt.Errorf("%s is given: want a whole number", kindOf(v))
		}
		*dst = int(n)
	case *time.Duration:
		s, ok := v.(string)
		if !ok {
			return fmt.Errorf(`%s is given: want a duration such as "60s"`, kindOf(v))
		}
		return f.setText(s)
	case *[]string:
		list, ok := v.([]any)
		if !ok {
			return fmt.Errorf("%s is given: want an array of strings", kindOf(v))
		}
		*dst = make([]string, len(list))
		for i, e := range list {
			if (*dst)[i], ok = e.(string); !ok {
				return fmt.Errorf("entry %d is %s: want a string", i+1, kindOf(e))
			}
		}
	case *map[string]string:
		entries, ok := v.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is given: want a table of strings", kindOf(v))
		}
		*dst = map[string]string{}
		for name, value := range sorted(entries) {
			if (*dst)[name], ok = value.(string); !ok {
				return fmt.Errorf("label %q is %s: want a string", name, kindOf(value))
			}
		}
	case *[]Assign:
		list, err := assignValue(v)
		if err != nil {
			return err
		}
		*dst = list
	case *[]Serve:
		list, err := serveValue(v)
		if err != nil {
			return err
		}
		*dst = list
	}
	return nil
}

// assignValue reads "auto" or [{model = "...", lo = 0, hi = 2}].
func assignValue(v any) ([]Assign, error) {
	if v == "auto" {
		return nil, nil
	}
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf(`%s is given: want "auto" or an array of {model, lo, hi}`, kindOf(v))
	}
	out := make([]Assign, 0, len(list))
	for i, e := range list {
		entry, ok := e.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("entry %d is %s: want {model, lo, hi}", i+1, kindOf(e))
		}
		var model string
		lo, hi := -1, -1
		parts := []Field{{Key: "model", dst: &model}, {Key: "lo", dst: &lo}, {Key: "hi", dst: &hi}}
		for key, value := range sorted(entry) {
			j := slices.IndexFunc(parts, func(f Field) bool { return f.Key == key })
			if j < 0 {
				return nil, fmt.Errorf("entry %d has an unknown key %q: want model, lo and hi", i+1, key)
			}
			if err := parts[j].setValue(value); err != nil {
				return nil, fmt.Errorf("entry %d: %s: %w", i+1, key, err)
			}
		}
		for _, p := range parts {
			if _, ok := entry[p.Key]; !ok {
				return nil, fmt.Errorf("entry %d lacks the key %q: want model, lo and hi", i+1, p.Key)
			}
		}
		out = append(out, Assign{Model: model, Layers: kevlard.Layers{Lo: lo, Hi: hi}})
	}
	return out, nil
}

// Text returns the value as a flag would carry it.
func (f Field) Text() string {
	switch dst := f.dst.(type) {
	case *string:
		return *dst
	case *bool:
		return strconv.FormatBool(*dst)
	case *int:
		return strconv.Itoa(*dst)
	case *time.Duration:
		return dst.String()
	case *[]string:
		return strings.Join(*dst, ",")
	case *map[string]string:
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(*dst)) {
			parts = append(parts, name+"="+(*dst)[name])
		}
		return strings.Join(parts, ",")
	case *[]Assign:
		var parts []string
		for _, a := range *dst {
			parts = append(parts, fmt.Sprintf("%s:%d-%d", a.Model, a.Layers.Lo, a.Layers.Hi))
		}
		return strings.Join(parts, ",")
	case *[]Serve:
		return serveText(*dst)
	}
	return ""
}

// kindOf names the type of a TOML value for people.
func kindOf(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case int64:
		return "a whole number"
	case float64:
		return "a float"
	case []any:
		return "an array"
	case map[string]any:
		return "a table"
	}
	return "a date or time"
}
