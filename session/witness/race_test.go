//go:build race

package witness

// tiny leaves out the larger explorations: they have nothing to do with races, and
// make test visits them without the detector.
const tiny = true
