// Package netfault cuts daemons of a local mesh off from the others, as a pulled
// cable would: their packets vanish in both directions and nobody is told.
//
// It works in a network namespace of its own only, so that no rule of it can reach
// the machine's network: Command runs this program again in a new one, Enter checks
// there that it is another one and brings the loopback up. What a daemon sends is
// recognised by its group (see devmesh.Options.GroupBase) and not by its source
// address, because a connection that it dials from loopback has 127.0.0.1. Marked
// packets are dropped where they come in: a rule on the way out would tell the sender.
package netfault
