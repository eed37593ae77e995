// Package topology turns a view of the ring into who should hold which layers, and into
// the candidate stages of routes. It is pure: a view goes in, values come out, and two
// nodes with equal views compute equal results. Costs are integers, ties end at node IDs,
// and nothing depends on the order of a map.
//
// # The plan
//
// View.Plan computes the desired assignment of all ranges of all models; there is no
// leader, each node computes it from its own view and carries out only its own part
// (Plan.Mine, Reformer). Routes never follow the plan: they are made from what nodes
// advertise as ready. So views that differ cost at worst a redundant load.
//
// The cut. All pipelines of a model share one cut, since a standby must have the same
// range as the stage that it stands by for, and KV is named with its range. The cut does
// not depend on how many nodes there are: a pipeline has Goal.Stages stages (4), or as
// many as memory asks for, and a node in a small ring holds several of them. When a node
// joins, ranges are handed to it as they are; nothing is cut anew and all copies of KV
// keep their names. The result does not depend on the order in which nodes were started
// either. Price: a node that could hold a whole model holds it as four stages while
// it is alone. What stands goes before what would be best: the cut is the chain of ranges
// that keeps most of the bytes that are held (View.Layout's ranges, also those of the
// dead, whose standbys and keepers name KV by them), unless it can't cover the model,
// configuration asks for another number of stages, or measured speeds make another
// shape faster by Goal.Gain. Where each stage has devices of its own, the cut gives
// slow devices fewer layers. A layer costs the bytes that a step reads: the head counts
// with its bytes, the embedding only takes memory.
//
// How many. First every model gets one holder for each range (in the order of weights,
// then those that stand, then names), then each gets Goal.Replicas (2), then the devices
// that are left make further whole pipelines, shared out by weights. Eight equal nodes
// make two pipelines of four stages although one could hold the model alone: all nodes
// work, each layer has a holder when any node dies, and a replacement loads a quarter of
// the model. Sixteen make four. Fewer than eight hold more than one range each. Devices
// that make no whole pipeline stay free, and take over when somebody dies.
//
// Who. A range stays where it is: on holders in different zones first, then the
// readiest, then those with the fewest stages. Missing holders are found in this order:
// a device where nothing else has to go; a zone without the range; one that would not
// have more than its share of the work; weights on disk, then the fewest bytes from
// peers; the least load, by measured speed; free memory; the zone of the pipeline's other
// stages; a hash of range and node, so that nodes with slightly different views choose
// alike for nearly all ranges; node ID. No device is ever given more than its budget of
// weights and KV. Then copies are moved from the most to the least loaded, for
// nothing where the other has them already, else only for a gain of Goal.Gain.
//
// What can't be. When no cut with a uniform size of stages can be placed, the layers are
// split over exactly the memory there is. When that fails too, what stands stays, what can
// be placed of it is, and the plan names the missing layers.
//
// # Carrying it out
//
// Reformer is a node's own part over time: it lets deaths and joins settle, so that a
// flapping node moves nothing, loads one stage at a time, gives up a stage only when
// routes without it remain, and does not try failed loads in a loop. A node that dies
// after another gave up the same layers in its favour, before the ring says so, can still
// take a route with it.
package topology
