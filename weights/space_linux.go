package weights

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// freeBytes is what this user may still write at path; false if that is not known.
func freeBytes(path string) (int64, bool) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, false
	}
	return int64(s.Bavail) * s.Bsize, true
}

// allocated is what the file at path takes of its disk, 0 if there is none.
func allocated(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return 0
}
