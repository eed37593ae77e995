#!/bin/sh
# Writes a built binary and all that belongs to it below a directory, in the layout of a
# prefix: /usr/local for the tarball, /usr for packages. Paths in units and scripts are
# made to fit; their sources have /usr/local.
#
#   scripts/tree.sh BINARY VERSION PREFIX DIR
set -eu
[ $# = 4 ] || { echo "usage: $0 BINARY VERSION PREFIX DIR" >&2; exit 2; }
bin=$1 version=$2 prefix=$3 root=$4
cd "$(dirname "$0")/.."
doc=$root/share/doc/kevlard

fit() { # MODE SOURCE DESTINATION
	install -D -m "$1" "$2" "$root/$3"
	sed -i "s:/usr/local/:$prefix/:g" "$root/$3"
}
install -D -m 755 "$bin" "$root/bin/kevlard"
for unit in kevlard.service kevlard-gateway.service kevlard-api.socket; do
	fit 644 deploy/systemd/$unit lib/systemd/system/$unit
done
install -D -m 644 deploy/systemd/kevlard.sysusers "$root/lib/sysusers.d/kevlard.conf"
install -D -m 644 deploy/systemd/kevlard.tmpfiles "$root/lib/tmpfiles.d/kevlard.conf"
for file in deploy/kevlard.toml deploy/sysctl.conf docs/operating.md docs/resume.md LICENSE; do
	install -D -m 644 "$file" "$doc/$(basename "$file")"
done
for file in deploy/slurm/*; do
	fit 755 "$file" "share/doc/kevlard/slurm/$(basename "$file")"
done
if [ -e README.md ]; then
	install -D -m 644 README.md "$doc/README.md"
else
	echo "tree: there is no README.md: it is left out" >&2
fi

kevlard() { "$root/bin/kevlard" "$@"; }
mkdir -p "$root/share/man/man8" "$root/share/bash-completion/completions" "$root/share/fish/vendor_completions.d"
kevlard man >"$root/share/man/man8/kevlard.8"
kevlard completion bash >"$root/share/bash-completion/completions/kevlard"
kevlard completion fish >"$root/share/fish/vendor_completions.d/kevlard.fish"
kevlard completion zsh >"$doc/completion.zsh" # to be sourced
kevlard config check "$doc/kevlard.toml" >/dev/null
scripts/sbom.sh "$root/bin/kevlard" "$version" >"$doc/kevlard.cdx.json"
chmod -R u=rwX,go=rX "$root"
