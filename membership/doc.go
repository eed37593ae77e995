// Package membership is the ring: which nodes exist, under which boot, where
// they listen, and how far away they are. It wraps hashicorp/memberlist (SWIM
// gossip, encrypted with the cluster secret, labelled with the ring's name) and
// adds what that library lacks: remembered peers, rejoin for ever, boots, names
// bound to peer IDs, a table of the dead and the left, and force-leave.
//
// # What a reader may rely on
//
// Members is one node's view. Two nodes' views are never assumed equal; a name
// with another boot is another process, to be treated as leave and join. A
// restart is seen as a new boot even if nobody noticed the crash. memberlist
// does not publish suspicion: a suspect member is reported alive until it is
// declared dead, so the faster evidence of the data path has to come from there: an
// Inquest decides from it whether a boot is gone, and Bury shows that at once.
//
// # Names
//
// A name belongs to one peer ID from the first alive message on, until the node
// leaves, is force-left, or has been dead for 24 hours. Every member refuses
// alive messages of a second claimant, and the claimant's Run returns a
// NameTakenError. It learns of it by asking: after each join a node sends the
// seed a claim (name, peer, boot) and the seed answers with what it shows. The
// same question verifies that a join really took effect, which memberlist's own
// success does not. If two claimants start at the same instant on different
// seeds, both may be refused. Gossip proves possession of the secret and not the
// peer ID: a holder of the secret can lie here, and the mesh handshake is what
// proves identity.
//
// # Wire
//
// The meta of a node is the fixed binary described at Meta. User messages are a
// kind byte and a CBOR map: claim (1), verdict (2), gone (3). The user part of a
// push/pull is kind 4: the names that are dead but held, and the boots that left
// or were forced out. Unknown kinds and trailing meta bytes are ignored, so
// newer builds can add to both.
//
// # Locks
//
// memberlist calls its delegates with its node lock held. They only copy into
// the table (a leaf mutex) or a bounded inbox; no code here calls memberlist
// while it holds a lock that a delegate takes.
package membership
