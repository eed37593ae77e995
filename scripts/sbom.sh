#!/bin/sh
# Writes the modules that a Go binary was built from as a CycloneDX document, to
# stdout. It has no time and no random id: equal binaries give equal documents.
#
#   scripts/sbom.sh BINARY VERSION
set -eu
[ $# = 2 ] || { echo "usage: $0 BINARY VERSION" >&2; exit 2; }
go version -m "$1" | awk -F '\t' -v version="$2" '
function quote(s) { gsub(/[\\"]/, "\\\\&", s); return "\"" s "\"" }
function component(path, v, sum,    line) {
	line = "    {\"type\": \"library\", \"name\": " quote(path) ", \"version\": " quote(v) ", \"purl\": " quote("pkg:golang/" path "@" v)
	if (sum != "") line = line ", \"properties\": [{\"name\": \"go.sum\", \"value\": " quote(sum) "}]"
	parts[++n] = line "}"
}
NR == 1 { go = $0; sub(/^.*: /, "", go) }
$2 == "path" { main = $3 }
$2 == "dep" { component($3, $4, $5) }
$2 == "=>" { n--; component($3, $4, $5) } # a replacement stands in for the line before
END {
	sub(/^go/, "", go)
	component("std", "go" go, "")
	print "{\n  \"bomFormat\": \"CycloneDX\",\n  \"specVersion\": \"1.5\",\n  \"version\": 1,"
	print "  \"metadata\": {\"component\": {\"type\": \"application\", \"name\": \"kevlard\", \"version\": " quote(version) ", \"purl\": " quote("pkg:golang/" main "@" version) "}},"
	print "  \"components\": ["
	for (i = 1; i <= n; i++) print parts[i] (i < n ? "," : "")
	print "  ]\n}"
}'
