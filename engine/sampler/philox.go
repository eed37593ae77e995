package sampler

import "math/bits"

// philox is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", 2011): a keyed bijection of 128-bit counters that
// passes the usual statistical batteries.
func philox(ctr [4]uint32, key [2]uint32) [4]uint32 {
	for range 10 {
		hi0, lo0 := bits.Mul32(0xD2511F53, ctr[0])
		hi1, lo1 := bits.Mul32(0xCD9E8D57, ctr[2])
		ctr = [4]uint32{hi1 ^ ctr[1] ^ key[0], lo1, hi0 ^ ctr[3] ^ key[1], lo0}
		key[0] += 0x9E3779B9
		key[1] += 0xBB67AE85
	}
	return ctr
}

// Uniform returns the number in [0,1), a multiple of 2^-53, that seed assigns to
// position pos.
func Uniform(seed, pos uint64) float64 {
	x := philox([4]uint32{uint32(pos), uint32(pos >> 32)}, [2]uint32{uint32(seed), uint32(seed >> 32)})
	return float64((uint64(x[1])<<32|uint64(x[0]))>>11) / (1 << 53)
}
