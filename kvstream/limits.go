package kvstream

// The bounds of the package.
//
//	bound           what is bounded                    when it is full
//	NewStore bytes  block memory of each stage         Put fails, nothing of the piece is kept
//	NewPool bytes   memory of the buffers in use       Get returns nil
const (
	// chunkBytes is how much block memory is taken from the system at once: a slot,
	// if that is larger.
	chunkBytes = 4 << 20
	// minBuffer is the least that a buffer counts for in its pool, with all that
	// belongs to it: so there are not many small ones.
	minBuffer = 4 << 10
)
