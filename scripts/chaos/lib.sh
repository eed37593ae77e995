# What the scripts beside this file share: arguments, and the processes of a
# `kevlard dev --dir DIR` mesh. To be sourced, after $usage is set.
#
# Exit codes are those of kevlard: 0 done, 1 failed, 2 bad arguments, 130 interrupted.
# shellcheck shell=sh disable=SC2034,SC2154 # variables for who sources this, and from there
# shellcheck disable=SC3013 # dash and bash know -ef

self=$(basename "$0")

# fail CODE MESSAGE... ends the script.
fail() {
	code=$1
	shift
	echo "$self: $*" >&2
	exit "$code"
}

# parse FLAGS ARGUMENT... sets dir, engine (yes or empty), duration and nodes. FLAGS are
# those that the script knows.
parse() {
	known=$1
	shift
	dir='' engine='' duration='' nodes=''
	while [ $# -gt 0 ]; do
		case $1 in -h | --help) echo "$usage"; exit 0 ;; esac
		case $1 in
		-*)
			case " $known " in *" $1 "*) ;; *) fail 2 "$1 is unknown: want $known or --help" ;; esac
			[ "$1" = --engine ] || [ $# -ge 2 ] || fail 2 "$1 needs a value"
			;;
		esac
		case $1 in
		--dir) dir=$2; shift ;;
		--for) duration=$2; shift ;;
		--engine) engine=yes ;;
		*[!A-Za-z0-9._-]* | '') fail 2 "node '$1': want a name as scripts/chaos/list shows it" ;;
		*) nodes="$nodes $1" ;;
		esac
		shift
	done
	[ -n "$dir" ] || fail 2 "--dir is missing: want the directory that kevlard dev --dir was given"
	cluster=$dir/cluster.json
	[ -r "$cluster" ] || fail 1 "there is no $cluster: is a mesh running, and ready, with --dir $dir?"
}

# need_nodes demands one node or more.
need_nodes() {
	[ -n "$nodes" ] || fail 2 "NODE is missing: want one or more of $(names)"
}

# listed prints a line "NAME PID" for each node, with 0 for the dead. cluster.json has
# one key a line, and six blanks before those of a node.
listed() {
	awk '
		function show() { if (name != "") print name, pid }
		{ value = $2; gsub(/[",]/, "", value) }
		/^      "name":/ { show(); name = value; pid = 0 }
		/^      "pid":/ { pid = value }
		END { show() }
	' "$cluster"
}

# names prints all nodes in one line.
names() {
	listed | awk '{ printf "%s%s", sep, $1; sep = ", " }'
}

# running PID NODE tells whether the process is that node's daemon: what the file
# says may be older than the process, whose number may be another's by now.
running() {
	config=$(tr '\0' '\n' 2>/dev/null <"/proc/$1/cmdline" | sed -n 4p) || return 1
	[ -n "$config" ] && [ "$config" -ef "$dir/$2/kevlard.toml" ]
}

# daemon_of NODE prints the process of the node's daemon.
daemon_of() {
	pid=$(listed | awk -v node="$1" '$1 == node { print $2 }')
	[ -n "$pid" ] || fail 2 "node $1 is not in $cluster: want one of $(names)"
	if [ "$pid" -eq 0 ] || ! running "$pid" "$1"; then
		fail 1 "$1 is not running"
	fi
	echo "$pid"
}

# engines_of PID prints the engines of a daemon: its children, but for those that are
# dead and not yet buried.
engines_of() {
	{ grep -ls "^PPid:[[:space:]]*$1\$" /proc/[0-9]*/status || true; } | while read -r status; do
		case $(state_of "$status") in Z | X | '') ;; *) basename "${status%/status}" ;; esac
	done
}

# state_of FILE prints the letter for a process's state from its status file, nothing
# if it is gone.
state_of() {
	sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "$1" 2>/dev/null || true
}

# victims prints the processes of all nodes named, of one kind.
victims() {
	for node in $nodes; do
		daemon=$(daemon_of "$node") || exit
		[ -n "$engine" ] || { echo "$daemon"; continue; }
		pids=$(engines_of "$daemon")
		[ -n "$pids" ] || fail 1 "$node has no running engine"
		echo "$pids"
	done
}
