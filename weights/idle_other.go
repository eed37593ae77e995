//go:build !linux

package weights

// atLeisure runs f; only Linux has priorities of the disk.
func atLeisure(f func()) { f() }
