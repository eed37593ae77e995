// Package witness decides who owns a session when its owner may be gone. It is
// pure: values and methods, no time and no network.
//
// The record of a session names two or three witnesses, each a node in one life.
// Its owner tells them what the session is and which tokens it has generated, under
// its epoch. Another node becomes the owner of a higher epoch when enough of them
// promise it that epoch; a witness promises each epoch to one node and takes
// nothing of older ones from then on.
//
// # Why no epoch has two owners, and no committed token is lost
//
// Of n witnesses, n/2+1 make an election (Elects) and n - n/2 an acknowledgement
// (Commits): any two elections meet in a witness, and so do an election and an
// acknowledgement. What an owner counts as committed is therefore known to one of
// the promises of every later election, unless that witness promised first; then it
// did not acknowledge. The winner goes on from the record of the highest epoch among
// its promises and the longest log under it. (The scheme is that of viewstamped
// replication, with Raft's joint change of members and the quorums of Flexible
// Paxos.)
//
// Witnesses are replaced in two steps: first old and new ones together decide, and
// only when both have acknowledged that, the new ones alone. A candidate may begin
// with an old list; the promises show it the new one, because the first step is
// acknowledged by old witnesses too.
//
// A witness that was started anew has lost its promises, so it has none to give:
// lists name lives, not nodes. One that forgot a session keeps the epoch that it
// promised (see Store).
package witness
