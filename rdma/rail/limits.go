package rail

// The bounds of the package.
//
//	bound         what is bounded              when it is reached
//	MaxRails      rails of a host              the others are not used, and Local says so
//	MaxAddresses  addresses of a rail          the others are not told to peers
//
// A decoder of what a peer sends refuses more than both.
const (
	MaxRails     = 16
	MaxAddresses = 16
)
