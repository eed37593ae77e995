package protocol

// The bounds of what is accepted from a peer. What is over a bound is refused as
// a whole; the connection goes on.
const (
	// MaxBody is the most rows a frame carries, in bytes. Senders cut frames here.
	MaxBody = 256 << 10
	// MaxHeader is the most a frame's header takes, in bytes.
	MaxHeader = 64 << 10
	// MaxItems is the most items of a frame.
	MaxItems = 512
	// MaxItemTokens is the most positions of one item.
	MaxItemTokens = 4096
	// MaxMessage is the largest control message: a Prepare with MaxTokens tokens.
	MaxMessage = 1 << 20
	// MaxTokens is the longest session that a Prepare can carry.
	MaxTokens = 200_000
	// MaxWidth is the widest row in bytes (dimension 16384 in float32).
	MaxWidth = 64 << 10
	// MaxRenew is the most sessions in one Renew; more are sent in several.
	MaxRenew = 512
	// MaxHops is the most stages of a route.
	MaxHops = 256
	// MaxCell is the most bytes that one position's KV takes in all layers of a stage.
	MaxCell = 4 << 20
	// MaxRowsTokens is the most positions of one piece of KV.
	MaxRowsTokens = 1024
	// MaxRowsHeader is the most the header of a piece of KV takes, in bytes.
	MaxRowsHeader = 32 << 10
	// MaxSeekTokens is how many leading tokens of a prompt a Seek carries; how a longer
	// one goes on does not help to choose its route.
	MaxSeekTokens = 8192
	// MaxID is the longest session, node or boot id in bytes.
	MaxID = 128
	// MaxFollowed is the most tokens of one Followed, and maxFollowedText the most bytes
	// of why it failed.
	MaxFollowed     = 1024
	maxFollowedText = 4096
	// MaxSalt is the longest salt in bytes: an id and what says whose it is.
	MaxSalt = MaxID + 16
)
