package main

import (
	"fmt"

	"github.com/kevlard/kevlard/cmd/kevlard/config"
)

// didYouMean names the candidate nearest to a mistyped name, or nothing.
func didYouMean(name string, candidates []string) string {
	if best := config.Nearest(name, candidates); best != "" {
		return fmt.Sprintf(" (did you mean %s?)", best)
	}
	return ""
}
