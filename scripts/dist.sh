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
doc=$root/share/doc/kevlard

install -D -m 755 "$bin" "$root/bin/kevlard"
install -D -m 644 deploy/systemd/kevlard.service "$root/lib/systemd/system/kevlard.service"
install -D -m 644 deploy/systemd/kevlard.sysusers "$root/lib/sysusers.d/kevlard.conf"
install -D -m 644 deploy/kevlard.toml "$doc/kevlard.toml"
install -D -m 644 docs/operating.md "$doc/operating.md"
install -D -m 644 LICENSE "$doc/LICENSE"
if [ -e README.md ]; then
	install -D -m 644 README.md "$doc/README.md"
else
	echo "dist: there is no README.md: it is left out" >&2
fi

kevlard() { "$root/bin/kevlard" "$@"; }
mkdir -p "$root/share/man/man8" "$root/share/bash-completion/completions" "$root/share/fish/vendor_completions.d"
kevlard man >"$root/share/man/man8/kevlard.8"
kevlard completion bash >"$root/share/bash-completion/completions/kevlard"
kevlard completion fish >"$root/share/fish/vendor_completions.d/kevlard.fish"
kevlard completion zsh >"$doc/completion.zsh" # to be sourced
kevlard config check "$doc/kevlard.toml" >/dev/null
scripts/sbom.sh "$root/bin/kevlard" "$version" >"$doc/kevlard.cdx.json"
cp "$doc/kevlard.cdx.json" "$dir/$name.cdx.json"

# The same files give the same archive, whoever packs them and when.
stamp=$(git log -1 --format=%ct 2>/dev/null || echo 0)
chmod -R u=rwX,go=rX "$root"
tar -C "$tmp" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$stamp" -cf - "$name" | gzip -n -9 >"$dir/$name.tar.gz"
(cd "$dir" && sha256sum "$name.tar.gz" "$name.cdx.json" >SHA256SUMS)
echo "$dir/$name.tar.gz"
