// Package archtest holds the rules of the tree as tests: which package may
// import which, what pure means, and what no file may contain. It has no code of
// its own. A new package needs a row in the import table, so that changes of the
// layout are seen in review.
package archtest
