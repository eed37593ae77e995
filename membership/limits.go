package membership

import "time"

// Every bound of the package, and what happens when it is reached.
const (
	// metaMax is memberlist's limit in bytes; beyond it memberlist panics, so
	// New refuses fields whose limits below would not sum to less.
	metaMax = 512

	maxName    = 64  // bytes of a node name; longer names are refused
	maxRing    = 64  // bytes of a ring name; longer ones are refused
	maxPeer    = 64  // bytes of a peer ID in text; longer ones are refused
	maxBoot    = 32  // bytes of a boot ID; longer ones are refused
	maxAddr    = 112 // bytes of a host:port; longer ones are refused
	maxVersion = 32  // bytes of a version string; New cuts longer ones

	maxMembers   = 4096           // live names in the table; alive messages of further ones are refused
	maxTombs     = 1024           // dead and left names in the table; the oldest is forgotten, which frees its name
	tombAge      = 24 * time.Hour // age at which a dead or left name is forgotten
	maxGone      = 1024           // boots known to have left; the oldest is forgotten
	maxRetired   = 16             // earlier boots kept per name; the oldest is forgotten
	maxSync      = 256            // tombs and gone boots sent per push/pull, the newest ones
	maxSyncBytes = 256 << 10      // user part of a push/pull; larger ones are ignored

	maxMessage  = 1024 // bytes of a user message; larger ones are dropped
	inboxSize   = 256  // user messages waiting; further ones are dropped and asked again
	maxReplies  = 8    // replies being sent at once; further claims are dropped and asked again
	maxQueued   = 128  // gone messages waiting to be gossiped; the most often sent are dropped
	maxFarewell = 64   // members told of a leave directly; the others hear by gossip

	maxJoin       = 64  // join addresses per call or in the config; more are refused
	roundSeeds    = 16  // addresses tried per round while the node is alone
	healSeeds     = 5   // addresses outside the view tried per round once joined
	smallRing     = 16  // members alive up to which the dead are looked for more often; more do it often enough together
	aliveSeeds    = 3   // members joined again per round once joined
	maxIntroduce  = 256 // members asked after a start whether they show us; the others learn by gossip and push/pull
	asksAtOnce    = 8   // of those at once
	joinsAtOnce   = 4   // joins running at once; the others wait
	maxRemembered = 256
	maxPeersFile  = 1 << 20 // bytes of peers.json; a larger file is ignored with a warning

	mostDoomed = 30 * time.Second // a member that gossip calls dead and that is heard beside it; longer, and gossip is right

	rememberFor = 30 * 24 * time.Hour // a peer not seen for so long is dropped from peers.json

	maxLogKeys = 256 // sources and message shapes whose log lines are limited; beyond, lines go to debug
	maxLogLine = 512 // bytes of a memberlist line; the rest is cut
)
