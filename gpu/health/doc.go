// Package health judges GPUs by what was read of them. It is pure: readings and
// times go in, verdicts come out; package gpu reads the driver and the kernel log.
//
// # Verdicts
//
// A device is ok, to be avoided (it works, and new work goes elsewhere while there is
// an elsewhere) or to be drained (its sessions should move, then somebody should look at
// it). What is only seen now and then has hysteresis: it must be seen in several readings
// in a row to count, and be gone for a while before it counts no more. What the driver
// reports as a fault of the hardware (see Xids) stays until the daemon is started again
// or an administrator overrules it, because a GPU that has lost data once looks healthy
// right after.
//
// # Xids
//
// The driver numbers the errors that it reports (Xid). What each asks for is taken from
// NVIDIA's catalogue, "Analyzing Xid Errors with the Xid Catalog" (docs.nvidia.com/deploy/
// xid-errors): what needs a reset of the GPU or of the host drains; what recommends a
// reset when convenient, or concerns links that kevlard does not use, avoids; what stems
// from an application, and all else, is only reported.
package health
