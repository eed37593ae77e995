#!/bin/sh
# Checks kevlard on this machine's first GPU, and prints one table: the backend library is built
# for its chip, the driver asked by NVML, the small model served over 4 stages (8 hosts on
# loopback) whose copies are hot, an engine killed in the middle of a stream, and speed,
# copies of KV and memory measured.
#
#   scripts/device-check.sh [--device cuda|cpu|fake] [--kevlard FILE] [--model FILE] [--sources DIR]
#                           [--backend-dir DIR] [--tokens N] [--base-port P] [--limit SECONDS]
#
# Needs no network and no Go. --sources is for build-cuda-backend.sh; --backend-dir takes a
# library that was built before. --device cpu rehearses it without a GPU, --device fake with
# the library that says it is one (engine/testdata; needs g++ and --sources or Go).
# --limit (default 570) is for all together: what does not fit is not run, and said so.
# Exit 0 only if every row passed; on cpu and fake, rows that need a GPU say so and do not
# count. 1: a row failed or was not run. 2: usage.
#
# Not run on a GPU: none was at hand. Rehearsed on the CPU by e2e.TestDeviceCheck.
set -u
usage() { echo "device-check: $1" >&2; exit 2; }
device=cuda exe=bin/kevlard model=model/fairy/fairy-7m-q8_0.gguf sources='' backend='' tokens=600 port=18080 limit=570
while [ $# -gt 0 ]; do
	[ $# -gt 1 ] || usage "$1 needs a value"
	case $1 in
	--device) device=$2 ;;
	--kevlard) exe=$(realpath "$2") ;;
	--model) model=$(realpath "$2") ;;
	--sources) sources=$(realpath "$2") ;;
	--backend-dir) backend=$(realpath "$2") ;;
	--tokens) tokens=$2 ;;
	--base-port) port=$2 ;;
	--limit) limit=$2 ;;
	*) usage "$1: want --device, --kevlard, --model, --sources, --backend-dir, --tokens, --base-port or --limit" ;;
	esac
	shift 2
done
case $device in cuda | cpu | fake) ;; *) usage "--device '$device': want cuda, cpu or fake" ;; esac
for n in "$tokens" "$port" "$limit"; do
	case $n in '' | *[!0-9]*) usage "'$n': --tokens, --base-port and --limit want a number" ;; esac
done
[ "$tokens" -ge 50 ] && [ "$tokens" -le 900 ] || usage "--tokens $tokens: want 50 to 900"
cd "$(dirname "$0")/.." || exit 2
[ -x "$exe" ] || usage "$exe: no such program: build kevlard, or name it with --kevlard"
[ -f "$model" ] || usage "$model: no such model: name it with --model"

began=$(date +%s)
work=$(mktemp -d) dev='' sampler='' failed=0
left() {
	l=$((began + limit - $(date +%s)))
	if [ "$l" -lt 1 ]; then echo 1; else echo "$l"; fi
}
cleanup() {
	[ -z "$sampler" ] || kill "$sampler" 2>/dev/null
	[ -z "$dev" ] || { kill -TERM "$dev" 2>/dev/null; wait "$dev" 2>/dev/null; }
	dev='' sampler=''
}
trap 'cleanup; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
# row CHECK RESULT TEXT; a result is pass, FAILED, "not run", or "no GPU" (a rehearsal without one).
row() {
	printf '%-18s %-8s %s\n' "$1" "$2" "$3" >>"$work/table"
	echo "device-check: $1: $2: $3" >&2
	case $2 in FAILED | 'not run') failed=$((failed + 1)) ;; esac
}
not_run() { for r in "$@"; do row "$r" 'not run' "$why"; done; }
number() { sed -n '/"failovers"/,$ s/.*"'"$1"'": "\{0,1\}\([^",]*\).*/\1/p' "$work/broken.json" | head -n 1; }
ids() { sed -n '/"token_ids"/,/\]/ s/[^0-9]*\([0-9][0-9]*\).*/\1/p' "$1"; }
generate() { timeout "$(left)" "$exe" --control "$work/mesh/node-1/kevlard.sock" -o json generate --seed 7 --ignore-eos -n "$1" 'Once upon a time there was a little girl who' >"$2" 2>"$work/error"; }
lastline() { tail -n 1 "$1" | cut -c 1-300; }

backend_step() {
	if [ "$device" = cpu ]; then
		row backend 'no GPU' 'rehearsal on the CPU: no backend library was built'
		return 0
	fi
	[ -z "$backend" ] || { row backend pass "given: $backend"; return 0; }
	backend=$work/backend
	mkdir "$backend"
	if [ "$device" = cuda ]; then
		set -- scripts/build-cuda-backend.sh
		[ -z "$sources" ] || set -- "$@" --sources "$sources"
		set -- "$@" "$backend"
	else
		set -- engine/testdata/fakegpu.sh "$backend" ${sources:+"$sources"}
	fi
	t=$(date +%s)
	if timeout "$(left)" "$@" >"$work/build" 2>&1; then
		row backend pass "built in $(($(date +%s) - t)) s"
	else
		cat "$work/build" >&2
		row backend FAILED "$(lastline "$work/build")"
		return 1
	fi
}

# driver has kevlard look at the GPU through NVML, as its daemon does.
driver() {
	if [ "$device" != cuda ]; then
		row driver 'no GPU' "rehearsal on $device: there is no driver to ask"
		return
	fi
	timeout "$(left)" "$exe" doctor --config /dev/null --engine-devices "$where" --engine-backend-dir "$backend" >"$work/doctor" 2>&1
	said=$(sed -n 's/^ok  *gpu\(-devices\)*  *//p' "$work/doctor" | paste -s -d ';')
	if [ "$(grep -cE '^ok +gpu(-devices)? ' "$work/doctor")" = 2 ]; then
		row driver pass "$said"
	else
		row driver FAILED "$(grep -E '^(warn|fail) +gpu' "$work/doctor" | head -n 1 | cut -c 1-300)"
	fi
}

# serve starts the mesh and waits until it serves, or ends, or the time is up.
serve() {
	t=$(date +%s)
	"$exe" dev --nodes 8 --stages 4 --dir "$work/mesh" --base-port "$port" >"$work/dev" 2>&1 &
	dev=$!
	until [ -f "$work/mesh/cluster.json" ]; do
		if ! kill -0 "$dev" 2>/dev/null || [ "$(left)" = 1 ]; then
			cat "$work/dev" >&2
			row 'serve 4 stages' FAILED "not ready after $(($(date +%s) - t)) s: $(lastline "$work/dev")"
			return 1
		fi
		sleep 0.1
	done
	on=$(grep -c "\"device\": \"$where\"" "$work/mesh/cluster.json")
	if [ "$on" = 8 ]; then
		row 'serve 4 stages' pass "8 of 8 engines on $where, ready in $(($(date +%s) - t)) s"
	else
		row 'serve 4 stages' FAILED "$on of 8 engines are on $where"
		return 1
	fi
}

# unbroken runs the stream that the broken one is compared with, and takes its time.
unbroken() {
	generate 8 "$work/warm.json"
	try=0
	while [ $try -lt 5 ]; do
		try=$((try + 1))
		t=$(date +%s%N)
		generate "$tokens" "$work/whole.json"
		rc=$?
		# On a busy host a stream may move without a death: then it was not unbroken.
		grep -q '"at_token"' "$work/whole.json" || break
		rc='0, but it moved'
	done
	ms=$((($(date +%s%N) - t) / 1000000 + 1))
	n=$(ids "$work/whole.json" | wc -l)
	if [ "$rc" = 0 ] && [ "$n" = "$tokens" ]; then
		row 'unbroken stream' pass "$n tokens in $ms ms"
		row speed pass "$((n * 1000 / ms)).$((n * 10000 / ms % 10)) tokens/s, one stream, its start and prompt included"
	else
		row 'unbroken stream' FAILED "$n of $tokens tokens, exit $rc: $(lastline "$work/error")"
		return 1
	fi
}

# strike kills the engine of the third stage of the stream that runs, once 20 tokens are known.
# It returns 1 when the stream ended before.
strike() {
	while kill -0 "$stream" 2>/dev/null; do
		"$exe" --control "$work/mesh/node-1/kevlard.sock" sessions 2>/dev/null | tail -n +2 | grep ' decode ' | head -n 1 >"$work/session"
		known=0
		read -r _ _ _ known _ _ _ _ _ victim _ <"$work/session"
		[ "${known:-0}" -ge 20 ] || continue
		pid=$(sed -n '/"name": "'"$victim"'"/,/"stages"/p' "$work/mesh/cluster.json" | sed -n '/"engines"/,$ s/.*"pid": \([0-9]*\).*/\1/p' | head -n 1)
		# The number may be of a process that is gone: what runs under it must be kevlard.
		[ -n "$pid" ] && [ "/proc/$pid/exe" -ef "$exe" ] && kill -9 "$pid" 2>/dev/null && return 0
	done
	return 1
}

# broken runs it again and kills an engine; a kill that came too late is tried again.
broken() {
	try=0
	while [ $try -lt 20 ]; do
		try=$((try + 1))
		generate "$tokens" "$work/broken.json" &
		stream=$!
		killed=yes at=''
		strike || killed=no
		wait "$stream"
		rc=$?
		[ $killed = no ] || at=$(number at_token)
		[ $rc = 0 ] && [ -z "$at" ] && [ "$(left)" != 1 ] && continue
		break
	done
	if [ $rc != 0 ]; then
		row 'engine killed' FAILED "the stream ended with exit $rc: $(lastline "$work/error")"
		why='the broken stream has no end' && not_run token-exact
	elif [ -z "$at" ]; then
		row 'engine killed' FAILED "no failover in $try streams: each kill came too late; try more --tokens"
		why='no stream was broken' && not_run token-exact
	else
		row 'engine killed' pass "engine of $victim, SIGKILL; failover at token $at of $tokens ($(number cause)), gap $(number gap_ms) ms, try $try"
		ids "$work/whole.json" >"$work/whole"
		ids "$work/broken.json" >"$work/broken"
		if cmp -s "$work/whole" "$work/broken"; then
			row token-exact pass "$(wc -l <"$work/broken") tokens equal those of the unbroken stream"
		else
			row token-exact FAILED "tokens differ: $(cmp "$work/whole" "$work/broken" 2>&1 | cut -d: -f2)"
		fi
	fi
}

copies() {
	set -- bench cells --model "$model" --device "$where"
	[ -z "$backend" ] || set -- "$@" --backend-dir "$backend"
	if timeout "$(left)" "$exe" "$@" >"$work/cells" 2>"$work/error"; then
		row 'KV copies' pass "$(sed 's/^[^ ]*: //' "$work/cells")"
	else
		row 'KV copies' FAILED "$(lastline "$work/error")"
	fi
}

memory() {
	if [ "$device" != cuda ]; then
		row 'device memory' 'no GPU' "rehearsal on $device: there is no device memory to read"
	elif [ -s "$work/memory" ]; then
		row 'device memory' pass "peak $(sort -n "$work/memory" | tail -n 1) MiB, $(head -n 1 "$work/memory") MiB before (nvidia-smi, twice a second)"
	else
		row 'device memory' 'not run' 'nvidia-smi gave no reading'
	fi
}

where=cuda:0
[ "$device" != cpu ] || where=cpu
if backend_step; then
	export KEVLARD_ENGINE_DEVICES="$where"
	export KEVLARD_KV_STANDBY=hot # copies wait in the device's memory
	[ -z "$backend" ] || export KEVLARD_ENGINE_BACKEND_DIR="$backend"
	if [ "$device" = cuda ]; then
		gpu=${CUDA_VISIBLE_DEVICES:-0}
		while sleep 0.5; do nvidia-smi -i "${gpu%%,*}" --query-gpu=memory.used --format=csv,noheader,nounits; done >"$work/memory" 2>/dev/null &
		sampler=$!
	fi
	driver
	if serve; then
		if unbroken; then broken; else why='there is no unbroken stream to compare with' && not_run speed 'engine killed' token-exact; fi
	else
		why='the mesh does not serve' && not_run 'unbroken stream' speed 'engine killed' token-exact
	fi
	memory
	cleanup # the copies are measured with the device to themselves
	copies
else
	why='there is no backend library' && not_run driver 'serve 4 stages' 'unbroken stream' speed 'engine killed' token-exact 'device memory' 'KV copies'
fi
took=$(($(date +%s) - began))
if [ "$took" -le "$limit" ]; then row time pass "$took s of $limit s"; else row time FAILED "$took s, more than $limit s"; fi

printf '\n%-18s %-8s %s\n' CHECK RESULT "ON $device"
cat "$work/table"
if [ "$failed" -gt 0 ]; then
	printf '\n%s rows FAILED or were not run\n' "$failed"
	exit 1
elif [ "$device" = cuda ]; then
	printf '\nall passed\n'
else
	printf '\nall passed that runs without a GPU: a rehearsal, which says nothing about one\n'
fi
