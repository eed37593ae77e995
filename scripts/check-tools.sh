#!/bin/sh
# Says in one line what is missing to build kevlard (with the argument sdk: to run
# make test-sdk), and exits 2.
fail() {
	echo "kevlard: $1" >&2
	exit 2
}
if [ "${1:-}" = sdk ]; then
	for t in node npm; do
		command -v "$t" >/dev/null 2>&1 ||
			fail "$t is missing, which make test-sdk needs: install Node 20 or newer with npm, from your distribution or https://nodejs.org"
	done
	v=$(node --version)
	major=${v#v}
	[ "${major%%.*}" -ge 20 ] || fail "node $v is too old for make test-sdk: 20 or newer is needed, see https://nodejs.org"
	exit 0
fi
for t in git gcc g++ go; do
	command -v "$t" >/dev/null 2>&1 ||
		fail "$t is missing: on Debian, apt-get install git make gcc g++; Go 1.21 or newer is at https://go.dev/dl"
done
v=$(go env GOVERSION 2>/dev/null | sed 's/^go//')
major=${v%%.*}
rest=${v#*.}
minor=${rest%%[!0-9]*}
[ "${major:-0}" -gt 1 ] || [ "${minor:-0}" -ge 21 ] ||
	fail "go $v is too old: 1.21 or newer fetches the version that go.mod names by itself"
# g++ 11 is the oldest that knows x86-64-v3 and C++17 as ggml wants it.
g=$(g++ -dumpversion | cut -d. -f1)
[ "$g" -ge 11 ] || fail "g++ $g is too old: 11 or newer is needed (Debian 12 has 12)"
if [ "$(uname -m)" = x86_64 ] && [ -r /proc/cpuinfo ] && ! grep -qw avx2 /proc/cpuinfo; then
	fail "this CPU has no AVX2, which the build uses (x86-64-v3)"
fi
