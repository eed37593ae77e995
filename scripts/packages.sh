#!/bin/bash
# Makes a deb and an rpm of a built binary (deploy/package/nfpm.yaml), or those that
# PACKAGERS names. CONFIG is the configuration that they bring, if not deploy/kevlard.toml.
#
#   scripts/packages.sh BINARY VERSION DIR
set -euo pipefail
[ $# = 3 ] || { echo "usage: $0 BINARY VERSION DIR" >&2; exit 2; }
bin=$(realpath "$1") version=$2
mkdir -p "$3"
dir=$(realpath "$3")
config=${CONFIG:+$(realpath "$CONFIG")}
cd "$(dirname "$0")/.."
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.48.0
# Packages sort by version: what comes after a tag, or has none, must not come before it.
packaged=${version//-/+}
[[ $packaged == [0-9]* ]] || packaged=0+$packaged
tmp=$(mktemp -d "$dir/.package.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
root=$tmp/usr
scripts/tree.sh "$bin" "$version" /usr "$root"
gzip -n -9 "$root/share/man/man8/kevlard.8"
# zsh loads it at the first completion, and then it must answer at once.
mkdir -p "$root/share/zsh/vendor-completions"
{
	echo '#compdef kevlard'
	sed 's/\b_kevlard\b/_kevlard_words/g' "$root/share/doc/kevlard/completion.zsh"
	echo '_bash_complete -o default -F _kevlard_words'
} >"$root/share/zsh/vendor-completions/_kevlard"
rm "$root/share/doc/kevlard/completion.zsh"
# The oldest C library that has all that it uses.
glibc=$(objdump -T "$bin" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
export ROOT=$tmp VERSION=$packaged ARCH=${GOARCH:-$(go env GOARCH)} GLIBC=${glibc#GLIBC_} CONFIG=${config:-deploy/kevlard.toml}
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH
find "$tmp" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
for packager in ${PACKAGERS:-deb rpm}; do
	# nfpm is pure Go; its build must not depend on our flags for cgo.
	CGO_ENABLED=0 go run "$nfpm" package --config deploy/package/nfpm.yaml --packager "$packager" --target "$dir/" | grep -v '^using' || true
done
find "$dir" -maxdepth 1 -name "kevlard[_-]$packaged[-_]*"
