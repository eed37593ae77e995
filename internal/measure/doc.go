// Package measure is the arithmetic of the benches: intervals of paired
// measurements, the order of pairs, groups of recoveries, and how a run is laid out
// in time. It is pure: times and counts come in as arguments, so every figure that a
// bench prints can be checked by a table.
package measure
