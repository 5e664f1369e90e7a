#pragma once
// The index encodings, and the bytes that an index takes before one exists. Each has a file of its
// own. Adding one: its file, its name in Encoding::kAll; tests/sparse runs all of them.
#include <string_view>
#include <vector>

#include "sparse/index/encoding.h"

namespace espalier::sparse {

inline Registry<Encoding> encodings() { return Encoding::kAll; }
/// Throws Failure that lists the names; for an encoding of an earlier version, that names the fix.
const Encoding& encoding_by_name(std::string_view name);
/// Its place in `encodings`, for messages between ranks.
int32_t number_of(const Encoding& encoding);
/// Those that `sparse.index` may name: all but full, which follows from the mask.
std::vector<const Encoding*> memory_encodings();

/// The smallest encoding for memory at this density whose decoding is fast: bitmap, or golomb where
/// it saves a tenth of that.
const Encoding& best_encoding(int64_t size, int64_t kept);
/// The same; also those that need a form of masks, if `shape` and this mask have it.
const Encoding& best_encoding(const Mask& mask, const IndexShape& shape);
/// The same for masks to come, of a method that keeps the groups or blocks that `shape` has.
const Encoding& best_encoding(int64_t size, int64_t kept, const IndexShape& shape);
/// Bytes that an index of `kept` of `size` elements takes (golomb: expected value for a random
/// mask). Zero when all are kept: such an index is always full.
size_t predicted_bytes(const Encoding& encoding, int64_t size, int64_t kept,
                       const IndexShape& shape = {});
/// H(f) size / 8: no encoding of random masks is smaller on average.
double entropy_bound_bytes(int64_t size, int64_t kept);

}  // namespace espalier::sparse
