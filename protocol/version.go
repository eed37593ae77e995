package protocol

// The versions that this build speaks. A node says which in its gossip and in the first
// frame of each connection; two nodes speak the highest that both know, or refuse each
// other.
//
// Within a version, fields and kinds of messages may be added: who does not know a field
// ignores it, and who does not know a kind drops the message, counts it and goes on. A
// change that must not be ignored takes a new version. A build that speaks N speaks N-1
// too, so that a ring can be upgraded node by node.
const (
	MinVersion = 1
	MaxVersion = 1
)
