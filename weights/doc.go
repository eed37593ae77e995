// Package weights keeps the weights that a node fetched, gives units of models to peers
// that lack them, and fetches them from peers. What is asked of whom is decided by
// weights/plan; this package reads, sends, checks and writes.
//
// # On disk
//
// A [Library] knows the model files that the node was given, and owns one directory for
// what it fetched: for each model a directory of its own, which is named after the
// model's digest and is a model.Parts. A unit comes as HEX.part, in any order of chunks.
// When all are there it is read again; only if its digest is right is it synced, renamed
// to HEX.unit and listed in the index, and only then can anybody read it. After a crash at
// any point what is in a part file says itself what it is: chunks that match the holders'
// sums are kept, the rest is fetched. A unit file that the index does not list was
// renamed just before a crash; it is read again.
//
// # Wire format
//
// Units are named by digest. The bytes of a unit are those of its tensors, in the order
// of their roles, one after the other, whatever file they lie in; a header, which every
// fetch begins with, is a unit named by the SHA-256 of its bytes. Chunk i is bytes
// [i MiB, (i+1) MiB) of a unit, as far as there are any.
//
// A fetcher makes the mesh call "weights" with the CBOR of a [Request]; the answer is the
// CBOR of an [Answer]. The chunk itself comes as a piece of the bulk transport, beside the
// answer and usually before it:
//
//	offset  size  header of the piece
//	0       3     "KVW"
//	3       1     version, 1
//	4       8     number of the request, big-endian
//
// Headers of KV begin with another byte. Compatibility: the version stands in the request
// and in the piece. A node that does not speak it answers with the refusal "version" and
// names its own; one that is older than all this does not know the call and says so by
// name and version. Keys that a reader does not know are ignored; a key is never reused.
//
// # Who is trusted
//
// A model's digest covers its shape and the digests of its units, so whoever knows it can
// tell whether units are right, and nothing else is ever loaded. It covers neither the
// tokenizer nor the chat template in the header: these are those of most holders.
package weights
