package config

import (
	"math"
	"strings"
)

// Field is one key of the configuration.
type Field struct {
	Key   string // "ring.bind"
	Doc   string
	Short string // a short flag name beside the long one, or empty
	Live  Live   // what a running agent takes over at SIGHUP

	dst   any          // *string, *bool, *int, *time.Duration, *[]string, *map[string]string, *[]Assign or *[]Serve; nil: no effect yet
	check func() error // of the value behind dst; nil: all values are fine
}

// Live says what a running agent takes over at SIGHUP.
type Live string

// What it takes over of a key. A key without takes a restart.
const (
	LiveValue   Live = "its value"
	LiveContent Live = "the file's content" // another file needs a restart
)

// Inert reports whether the key is accepted but has no effect yet.
func (f Field) Inert() bool { return f.dst == nil }

// Flag returns the name of the key's command-line flag.
func (f Field) Flag() string { return strings.NewReplacer(".", "-", "_", "-").Replace(f.Key) }

// Env returns the name of the key's environment variable.
func (f Field) Env() string {
	return "KEVLARD_" + strings.ToUpper(strings.ReplaceAll(f.Key, ".", "_"))
}

// IsBool reports whether the key's flag takes no value.
func (f Field) IsBool() bool { _, ok := f.dst.(*bool); return ok }

// Fields lists all keys, each bound to its place in c.
func (c *Config) Fields() []Field {
	return []Field{
		{Key: "node.name", Short: "name", dst: &c.Node.Name, check: func() error { return checkName(c.Node.Name) }, Doc: "name of this node, unique in the ring (default: host name)"},
		{Key: "node.role", Short: "role", dst: &c.Node.Role, check: func() error { return oneOf(c.Node.Role, RoleHost, RoleGateway) }, Doc: "host (holds stages) or gateway (owns sessions, no engine)"},
		{Key: "node.data_dir", Short: "data-dir", dst: &c.Node.DataDir, check: func() error { return notEmpty(c.Node.DataDir) }, Doc: "directory of identity, remembered peers and caches"},
		{Key: "node.labels", dst: &c.Node.Labels, check: func() error { return checkLabels(c.Node.Labels) }, Doc: "labels shown in member lists: NAME=VALUE, comma separated"},
		{Key: "node.zone", dst: &c.Node.Zone, check: func() error { return checkName(c.Node.Zone) }, Doc: "failure domain of this node, such as a site: copies go to other zones first, routes stay inside one that is far from others"},
		{Key: "ring.bind", dst: &c.Ring.Bind, check: func() error { return checkBind(c.Ring.Bind) }, Doc: "gossip address, UDP and TCP"},
		{Key: "ring.advertise", dst: &c.Ring.Advertise, check: func() error { return checkAdvertise(c.Ring.Advertise) }, Doc: "address, interface or CIDR at which others reach this node"},
		{Key: "ring.join", Short: "join", dst: &c.Ring.Join, check: func() error { return checkEach(c.Ring.Join, checkHostPort) }, Doc: "gossip addresses of some members, comma separated"},
		{Key: "ring.secret_file", dst: &c.Ring.SecretFile, Doc: "file with the cluster secret (see kevlard keygen)"},
		{Key: "ring.profile", dst: &c.Ring.Profile, check: func() error { return oneOf(c.Ring.Profile, "lan", "wan") }, Doc: "lan or wan"},
		{Key: "ring.name", dst: &c.Ring.Name, check: func() error { return checkName(c.Ring.Name) }, Doc: "name of the ring"},
		{Key: "ring.dev", Short: "dev", dst: &c.Ring.Dev, Doc: "a mesh on one machine: loopback addresses may be advertised"},
		{Key: "mesh.bind", dst: &c.Mesh.Bind, check: func() error { return checkBind(c.Mesh.Bind) }, Doc: "mesh address, TCP"},
		{Key: "mesh.fabric", dst: &c.Mesh.Fabric, check: func() error { return checkOptionalAddr(c.Mesh.Fabric) }, Doc: "address at which others reach the mesh, if not the advertised one"},
		{Key: "mesh.bulk_port", dst: &c.Mesh.BulkPort, check: func() error { return inRange(c.Mesh.BulkPort, 1, 65535) }, Doc: "TCP port of bulk transfers"},
		{Key: "mesh.transport", dst: &c.Mesh.Transport, check: func() error { return checkTransport(c.Mesh.Transport) }, Doc: "what moves KV: auto, tcp or rdma"},
		{Key: "mesh.plain", dst: &c.Mesh.Plain, Doc: "do not encrypt KV on its way, on a trusted fabric; the same on all nodes"},
		{Key: "api.listen", dst: &c.API.Listen, check: func() error { return checkHostPort(c.API.Listen) }, Doc: "address of the HTTP API; one that other hosts reach needs api.keys_file"},
		{Key: "api.max_queue", dst: &c.API.MaxQueue, check: func() error { return inRange(c.API.MaxQueue, 1, 65536) }, Doc: "requests in flight; more are answered 429"},
		{Key: "api.resume_window", dst: &c.API.ResumeWindow, check: func() error { return checkWindow(c.API.ResumeWindow) }, Doc: "how long a stream can be resumed after its client is gone; 0s: not at all"},
		{Key: "api.keys_file", Live: LiveContent, dst: &c.API.KeysFile, Doc: "file with the API keys (see kevlard keygen --api)"},
		{Key: "api.share_prefixes", dst: &c.API.SharePrefixes, Doc: "what was computed for the beginning of one key's prompt serves those of others that begin alike; they can tell by time and cached_tokens that somebody sent it"},
		{Key: "api.tls_cert", Live: LiveContent, dst: &c.API.TLSCert, Doc: "PEM file with the API's certificate"},
		{Key: "api.tls_key", Live: LiveContent, dst: &c.API.TLSKey, Doc: "PEM file with the certificate's key"},
		{Key: "models.dirs", dst: &c.Models.Dirs, check: func() error { return checkEach(c.Models.Dirs, notEmpty) }, Doc: "directories with GGUF files, comma separated"},
		{Key: "models.assign", dst: &c.Models.Assign, check: func() error { return checkAssign(c.Models.Assign) }, Doc: "stages of this node: MODEL:LO-HI, comma separated; auto: those that the mesh gives it"},
		{Key: "models.fetch_bandwidth", dst: &c.Models.FetchBandwidth, check: func() error { return checkFetchBandwidth(c.Models.FetchBandwidth) }, Doc: "weights that are fetched from other nodes at most, and as many that are sent to them, in bytes a second; 0: no cap"},
		{Key: "models.serve", dst: &c.Models.Serve, check: func() error { return checkServe(c.Models.Serve) }, Doc: "models that this node may be given layers of, where the mesh assigns them: NAME:SHARE (of the work, against other models, 1 to 1000; 1 if left out), comma separated; the largest share that any node names counts for all (default: every model, with equal shares)"},
		{Key: "kv.block_tokens", dst: &c.KV.BlockTokens, check: func() error { return inRange(c.KV.BlockTokens, 1, 1024) }, Doc: "positions of one block of KV"},
		{Key: "kv.ram_bytes", dst: &c.KV.RAMBytes, check: func() error { return inRange(c.KV.RAMBytes, 1<<20, math.MaxInt) }, Doc: "memory for the KV that is kept here, for other nodes and of prompts that may come again, in bytes; touched only as it is used"},
		{Key: "kv.nvme_dir"},
		{Key: "kv.nvme_bytes"},
		{Key: "kv.standbys", dst: &c.KV.Standbys, check: func() error { return inRange(c.KV.Standbys, 0, 1) }, Doc: "copies of the KV of sessions owned here: 0 (after a failover it is computed again) or 1"},
		{Key: "kv.standby", dst: &c.KV.Standby, check: func() error { return oneOf(c.KV.Standby, StandbyRAM, StandbyHot) }, Doc: "where copies are kept here: ram, or hot (in the engine as well, where it has room)"},
		{Key: "kv.replicate_tokens", dst: &c.KV.ReplicateTokens, check: func() error { return inRange(c.KV.ReplicateTokens, 1, 1024) }, Doc: "so many finished positions are sent to the standby at once, at most every 100 ms"},
		{Key: "kv.replicate_ms", dst: &c.KV.ReplicateMS, check: func() error { return inRange(c.KV.ReplicateMS, 1, 10_000) }, Doc: "a finished position waits no longer to be sent, in milliseconds"},
		{Key: "kv.bandwidth", dst: &c.KV.Bandwidth, check: func() error { return checkBandwidth(c.KV.Bandwidth) }, Doc: "KV that is sent at most, in bytes a second; 0: no cap"},
		{Key: "kv.high_water"},
		{Key: "kv.shed_water"},
		{Key: "kv.checkpoint_url"},
		{Key: "kv.checkpoint_tokens"},
		{Key: "engine.devices", dst: &c.Engine.Devices, check: func() error { return checkEach(c.Engine.Devices, checkDevice) }, Doc: "devices of the stages, in their order: cpu or cuda:N, comma separated; one that is not there is waited for (default: cpu)"},
		{Key: "engine.threads", dst: &c.Engine.Threads, check: func() error { return inRange(c.Engine.Threads, 0, 256) }, Doc: "compute threads of one engine; 0: half of the cores, shared among the engines"},
		{Key: "engine.cells", dst: &c.Engine.Cells, check: func() error { return inRange(c.Engine.Cells, 0, 1<<24) }, Doc: "KV positions of one stage, all sessions together; 0: what fits engine.memory_bytes (auto: at most 256 MiB for a quarter of a model, and a context's length if that is more and fits)"},
		{Key: "engine.memory_bytes", dst: &c.Engine.MemoryBytes, check: func() error { return inRange(c.Engine.MemoryBytes, 0, math.MaxInt) }, Doc: "memory in bytes, of the host touched only as it is used: with models.assign = auto of one device, for weights and KV (0: of the CPU half of the host's or control group's, of a GPU what is free there less a tenth, at least 1 GiB); else of the KV of one stage (0: 256 MiB)"},
		{Key: "engine.backend_dir", dst: &c.Engine.BackendDir, Doc: "directory of the backend library of the GPUs, libggml-cuda.so (see scripts/build-cuda-backend.sh)"},
		{Key: "control.socket", dst: &c.Control.Socket, Doc: "path of the control socket"},
		{Key: "control.group", dst: &c.Control.Group, Doc: "group (name or number) whose members may read at the control socket, and change nothing"},
		{Key: "log.level", Live: LiveValue, dst: &c.Log.Level, check: func() error { return oneOf(c.Log.Level, LogLevels()...) }, Doc: "debug, info, warn or error"},
		{Key: "log.format", dst: &c.Log.Format, check: func() error { return oneOf(c.Log.Format, LogFormats()...) }, Doc: "text or json"},
	}
}

// openTables are known by name only: what they will hold is not settled.
var openTables = []string{"metrics", "trace"}
