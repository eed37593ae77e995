#!/bin/sh
# Packs a built binary with all that belongs to it, ready to be unpacked in
# /usr/local, and writes the checksums beside it.
#
#   scripts/dist.sh BINARY VERSION DIR
set -eu
[ $# = 3 ] || { echo "usage: $0 BINARY VERSION DIR" >&2; exit 2; }
bin=$1 version=$2 dir=$3
cd "$(dirname "$0")/.."
name=kevlard-$version-$(go env GOOS)-$(go env GOARCH)
mkdir -p "$dir"
tmp=$(mktemp -d "$dir/.pack.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
root=$tmp/$name
scripts/tree.sh "$bin" "$version" /usr/local "$root"
cp "$root/share/doc/kevlard/kevlard.cdx.json" "$dir/$name.cdx.json"

# The same files give the same archive, whoever packs them and when.
stamp=$(git log -1 --format=%ct 2>/dev/null || echo 0)
tar -C "$tmp" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$stamp" -cf - "$name" | gzip -n -9 >"$dir/$name.tar.gz"
(cd "$dir" && sha256sum "$name.tar.gz" "$name.cdx.json" >SHA256SUMS)
echo "$dir/$name.tar.gz"
