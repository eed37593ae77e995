// Package audit checks what other nodes compute. Nobody sees inside a node: the digest of
// a stage in its record is its word. But another holder of the same layers can compute the
// same thing and compare. It opens a session at the peer's stage and at its own, as an
// owner would, feeds both the same random input, reads what comes out of both, and judges:
//
//	         due                 both prepared              both answered
//	idle ───────────▶ preparing ───────────────▶ computing ───────────────▶ judged ─▶ idle
//	                      └──── refusal, loss, time-out: no verdict ────┘
//
// The input of each audit comes from a hash of a secret of this life and a counter, so no
// peer can know it beforehand. Stages are compared where layers, digest and numerics class
// are equal: then the results are the same bits, whatever else the engines do. Engines of
// a best-effort class are compared with a tolerance, see close.
//
// # When
//
// A claim (a ready stage of a peer's life) that is new is audited within Timing.First, at
// a random time, so that not all holders ask at once; after a verdict again after half to
// one and a half times Timing.Every. One audit runs at a time. A holder audits the eight
// holders that follow it in the order of names, and besides those who dispute or are
// disputed. It waits while the node drains or either end has no room or much to do.
//
// # What it costs
//
// At most 8 positions at each of two stages, so 16 rows of compute for one verdict, and
// 8 rows of hidden state each way (a last stage: 8 batches, with a token sampled in each) over the network (64 KiB in all for a model of dimension
// 1024, at most 512 KiB); no KV is kept for others or sent. A ring of eight nodes with two
// holders of each stage makes eight audits in ten minutes.
//
// # What a verdict does
//
// One difference alone does not count: it is looked into by up to eight more audits at
// once, and if one of them differs too it is a dispute, which eight that agree can end. A node says in its record which holders of its layers it agrees with and which
// it disputes; Trust counts these words at every node.
//
// # What it does not find
//
// A difference that is too small to show in 8 positions of random input; who computes rightly for audits and otherwise for sessions, or answers none: an audit can
// be told from a session by who sends what. Layers with one holder are never audited.
package audit
