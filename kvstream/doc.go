// Package kvstream holds the bytes of the KV that a node keeps for others. What is
// kept, and where, is decided by kvstream/index; this package moves and checks the
// bytes and decides nothing.
//
// # Shape of the bytes
//
// A position's KV at a stage is a cell of CellBytes, made of rows: for each layer
// the keys, then the values (Layout). Cells of consecutive positions travel run by
// run, as engines read and write them: all positions' rows of the first layer's
// keys, then those of its values, and so on.
//
// A slot of block memory has the same shape, for BlockTokens positions. So a piece
// that arrives is scattered into slots, and slots are gathered into what an engine
// takes, by one copy for each run.
//
// # Checksums
//
// Each position has one sum (xxh3, 64 bits) over its rows in the order of the cell,
// made where the position was computed. It is checked when a piece arrives, kept
// beside the slot, and checked again over the very bytes that a load gives to an
// engine.
package kvstream
