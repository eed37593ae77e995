package model

// Bounds of what is accepted from a file. A file over a bound is refused with an
// error that names the bound and the byte where it was exceeded; none of them is
// near what published models have.
const (
	// maxMetaBytes bounds the header: metadata and tensor infos. The largest
	// known vocabularies need about 20 MB.
	maxMetaBytes = 256 << 20
	// maxKeys bounds the metadata pairs; models have 20 to 100.
	maxKeys = 1 << 14
	// maxTensors bounds the tensors; a 126-layer model has 1200.
	maxTensors = 1 << 17
	// maxKeyBytes bounds a metadata key, as the GGUF specification does.
	maxKeyBytes = 1<<16 - 1
	// maxTensorName bounds a tensor name; ggml cuts names at 63 bytes, so a
	// longer one could not be loaded.
	maxTensorName = 63
	// maxTextBytes bounds a string value (chat templates are the longest).
	maxTextBytes = 4 << 20
	// maxStrings bounds an array of strings; the largest published list of merges
	// has half a million.
	maxStrings = 1 << 22
	// maxDims is ggml's number of dimensions.
	maxDims = 4
	// maxAlignment bounds general.alignment; files use 32.
	maxAlignment = 1 << 20
	// maxLayers bounds block_count, so that tables by layer stay small.
	maxLayers = 1024
	// maxWidth bounds each of dim, feed-forward width and vocabulary.
	maxWidth = 1 << 22
	// maxScanFiles bounds the model files that a scan of directories looks at;
	// the rest is reported as one error.
	maxScanFiles = 4096
	// maxCacheBytes bounds a digest cache file that is read; a larger one is
	// recomputed.
	maxCacheBytes = 4 << 20
	// maxIndexBytes bounds the index of a directory of Parts: 200 bytes for each unit.
	maxIndexBytes = 1 << 20
	// maxNameBytes bounds the name that an index gives the model.
	maxNameBytes = 128
	// maxEncodeBytes bounds the text given to a tokenizer; more is refused. It is
	// about a million tokens, and up to 64 times as much memory while it is cut.
	maxEncodeBytes = 4 << 20
)
