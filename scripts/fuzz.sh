#!/bin/sh
# Runs every fuzz target of the tree for the given time (default 20s) each, or those
# whose "PACKAGE TARGET" matches the regular expression that follows:
#
#	scripts/fuzz.sh 10m '^\./mesh '
#
# One line for each; what a failed one printed follows its line. Exits 1 if one failed,
# or none was found. FUZZWORKERS is the number of processes of one target (default: one
# for each CPU). Interesting inputs go to Go's cache and make the next run start where
# this one ended; those that break a target to its testdata/fuzz, and belong committed.
set -u
time=${1:-20s}
want=${2:-.}
out=$(mktemp)
trap 'rm -f "$out"' EXIT
targets=$(grep -rn --include='*_test.go' '^func Fuzz' . | grep -v '/testdata/' |
	sed -n 's|^\(.*\)/[^/]*:[0-9]*:func \(Fuzz[A-Za-z0-9_]*\)(.*|\1 \2|p' | grep -E "$want" | sort)
[ -n "$targets" ] || {
	echo "kevlard: no fuzz target matches $want"
	exit 1
}
run=0 failed=0
# With cgo, the instrumented build would compile ggml anew; no target needs it.
export CGO_ENABLED=0
while read -r pkg target; do
	run=$((run + 1))
	result=ok
	go test "$pkg" -run '^$' -fuzz "^$target\$" -fuzztime "$time" ${FUZZWORKERS:+-parallel "$FUZZWORKERS"} >"$out" 2>&1 </dev/null || result=FAILED
	# Without this line nothing was fuzzed, whatever the exit status.
	last=$(grep '^fuzz: elapsed' "$out" | tail -1)
	[ -n "$last" ] || result=FAILED
	execs=$(echo "$last" | sed -n 's/.*execs: \([0-9]*\).*/\1/p')
	new=$(echo "$last" | sed -n 's/.*new interesting: \([0-9]*\).*/\1/p')
	crashes=$(grep -c 'Failing input written to' "$out")
	printf '%-24s %-20s %10s execs %5s new %2s crashes  %s\n' "$pkg" "$target" "${execs:-0}" "${new:-0}" "$crashes" "$result"
	if [ "$result" = FAILED ]; then
		failed=$((failed + 1))
		sed 's/^/    /' "$out" | tail -40
	fi
done <<END
$targets
END
echo "fuzz: $run targets of $time each, $failed failed"
[ "$failed" = 0 ]
