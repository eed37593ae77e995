//go:build !race

package witness

const tiny = false
