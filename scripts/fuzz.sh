#!/bin/sh
# Runs every fuzz target of the tree for the given time (default 20s) each.
set -eu
time=${1:-20s}
grep -rl --include='*_test.go' '^func Fuzz' . | while read -r file; do
	pkg=$(dirname "$file")
	sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file" | while read -r target; do
		echo "== $pkg $target"
		go test "$pkg" -run '^$' -fuzz "^$target\$" -fuzztime "$time"
	done
done
