package archtest

// imports lists, for each package, every other package of this module that it
// may import; tests may import more. "" is the root.
func imports() map[string][]string {
	return map[string][]string{
		"": {},

		// Deciding. These are pure; see pure.
		"protocol":  {""},
		"topology":  {""},
		"scheduler": {"", "topology"},
		"session":   {"", "kvstream/index", "protocol", "session/witness"},
		"stage":     {"", "kvstream/index", "protocol", "topology"},
		"node":      {"", "kvstream/index", "protocol", "topology", "scheduler", "session", "session/witness", "stage", "node/audit"},

		"node/audit":      {"", "protocol", "topology"},
		"session/witness": {"", "protocol"},

		"kvstream/index": {"", "protocol"},

		"weights/plan": {""},
		"weights":      {"", "model", "weights/plan"},

		"gpu/health": {""},

		// Doing. Drivers never import one another.
		"membership":               {""},
		"membership/memtransport":  {},
		"mesh":                     {""},
		"model":                    {""},
		"model/chat":               {},
		"model/fairy":              {},
		"engine":                   {"", "engine/sampler", "model"},
		"gpu":                      {"gpu/health"},
		"engine/sampler":           {""},
		"kvstream":                 {"", "kvstream/index", "protocol"},
		"kvstream/codec":           {},
		"kvstream/mover":           {""},
		"kvstream/mover/movertest": {"", "kvstream/mover"},
		"kvstream/conns":           {"", "kvstream/mover"},
		"kvstream/pace":            {""},
		"kvstream/tcp":             {"", "kvstream/conns", "kvstream/mover", "kvstream/pace"},
		"rdma/verbs":               {},
		"rdma/rail":                {"rdma/verbs"},
		"kvstream/prefer":          {"", "kvstream/mover"},
		"rdma":                     {"", "kvstream/conns", "kvstream/mover", "kvstream/pace", "rdma/flow", "rdma/rail", "rdma/verbs"},
		"rdma/flow":                {},
		"daemon":                   {"", "daemon/report", "internal/lifecycle", "kvstream", "kvstream/conns", "kvstream/index", "kvstream/mover", "kvstream/pace", "kvstream/prefer", "kvstream/tcp", "membership", "mesh", "node", "node/audit", "protocol", "stage", "topology", "weights"},
		"daemon/report":            {},
		"daemon/toy":               {"", "daemon", "internal/toymodel", "stage"},
		"api":                      {"", "daemon/report"},
		"client":                   {},

		// Wiring.
		"cmd/kevlard": {
			"", "api", "cmd/kevlard/config", "daemon", "daemon/report", "engine", "gpu", "gpu/health", "internal/bench", "internal/devmesh", "internal/devmesh/load",
			"internal/devmesh/netfault", "internal/kvbench", "internal/lifecycle", "internal/ringbench", "internal/routebench", "kvstream/codec", "kvstream/conns", "kvstream/index", "membership", "model",
			"model/chat", "model/fairy", "node", "rdma", "rdma/rail", "rdma/verbs", "stage", "topology", "weights",
		},
		"cmd/kevlard/config": {""},

		// Proving.
		"e2e":               {},
		"e2e/rdma":          {},
		"e2e/sdk":           {},
		"e2e/systemd":       {},
		"internal/archtest": {},
		"internal/bench": {
			"", "daemon/report", "internal/devmesh", "internal/devmesh/failstop", "internal/devmesh/load",
			"internal/devmesh/netfault", "internal/measure", "model",
		},
		"internal/devmesh":          {"", "api", "daemon/report", "model", "model/fairy"},
		"internal/devmesh/failstop": {"internal/devmesh/load"},
		"internal/devmesh/load":     {},
		"internal/devmesh/netfault": {},
		"internal/docrun":           {},
		"internal/ringbench":        {"", "internal/measure", "membership", "membership/memtransport"},
		"internal/routebench":       {"", "scheduler", "topology"},
		"internal/kvbench":          {"", "kvstream/conns", "kvstream/mover", "kvstream/tcp", "rdma", "rdma/rail"},
		"internal/lifecycle":        {},
		"internal/loopback":         {},
		"internal/measure":          {},
		"internal/sim":              {"", "internal/toymodel", "kvstream/index", "node", "protocol", "topology"},
		"internal/toymodel":         {"", "stage"},
		"scripts/compare":           {"internal/devmesh", "internal/devmesh/load"},
	}
}

// pure lists the packages that decide: no goroutine, lock, clock, socket, file,
// log or global random. The simulator runs exactly what the daemon runs, so what
// it cannot control they must not use.
func pure() []string {
	return []string{
		"", "protocol", "topology", "scheduler", "session", "session/witness", "stage", "node", "node/audit", "kvstream/index", "weights/plan", "rdma/flow", "gpu/health", "internal/measure", "internal/toymodel",
	}
}

// pureStd is all that a pure package may import of the standard library.
func pureStd() []string {
	return []string{
		"bytes", "cmp", "container/heap", "crypto/sha256", "encoding/binary", "encoding/hex", "errors", "fmt", "hash/fnv", "iter",
		"maps", "math", "math/bits", "slices", "sort", "strconv", "strings", "time", "unicode/utf8",
	}
}

// clocks are the functions of package time that a pure package may not name:
// time comes in as an argument.
func clocks() []string {
	return []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker"}
}

// quarantine lists modules that only some packages may import, and why.
func quarantine() []quarantined {
	return []quarantined{
		{"github.com/ollama/ollama", []string{"engine", "model"}, "it panics, aborts and logs on its own account"},
		{"github.com/hashicorp/memberlist", []string{"membership", "membership/memtransport", "daemon", "internal/ringbench"}, "its settings and gaps are that package's business"},
		{"github.com/libp2p", []string{"mesh", "daemon", "kvstream/tcp", "internal/kvbench"}, "connections belong to the mesh; the daemon only signs its record, bulk only proves the mesh's identity"},
		{"github.com/fxamacker/cbor", []string{"protocol", "mesh", "membership", "daemon", "engine", "model", "weights"}, "bytes are decoded where their format is documented"},
		{"github.com/prometheus", []string{"daemon", "api", "cmd/kevlard"}, "cores never measure themselves"},
		{"github.com/urfave/cli", []string{"cmd/kevlard"}, "flags end at the command line"},
		{"github.com/pelletier/go-toml", []string{"cmd/kevlard/config", "internal/devmesh"}, "the file format ends at the config"},
		{"github.com/coreos/go-systemd", []string{"daemon", "cmd/kevlard"}, "only the service talks to its manager"},
		{"github.com/NVIDIA/go-nvml", []string{"gpu"}, "its calls end the process where the driver lacks a function, and hang when it does"},
		{"pgregory.net/rapid", nil, "it is for tests"},
	}
}

type quarantined struct {
	module string
	in     []string
	why    string
}

// cgo lists the files that may import "C": one door for each package.
func cgo() map[string]string {
	return map[string]string{"engine": "ggml.go", "rdma/verbs": "door.go"}
}

// mutable lists the package variables of a mutable type that are accepted, and
// why. Errors, compiled patterns, embedded files and interface checks need no
// entry.
func mutable() map[string]string {
	return map[string]string{
		"engine.computeMu":              "the library's compute is not safe for two backends of one process",
		"cmd/kevlard.release":           "set by the linker",
		"cmd/kevlard.commit":            "set by the linker",
		"cmd/kevlard/config.openTables": "a list of names that is only read",
	}
}

// maxLines is the longest file.
const maxLines = 500
