#pragma once
// Masks in files: in the encoding of the index in memory, or in another one (docs/formats.md).
// `sparse.file_index` is the choice:
//
//   "auto"   golomb: within 3 % of the entropy of random masks, and ten times as fast as the
//            entropy code; the encoding in memory where that needs a form of masks and is smaller
//   "same"   that of the index in memory
//   others   the name of an encoding that holds any mask
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sparse/index/index.h"

namespace espalier::sparse {

struct FileIndex {
  Encoding encoding = Encoding::full;
  std::vector<uint8_t> bytes;
};

/// `choice` as above; a full index is full with any. Throws Failure for an unknown one. About
/// 0.6 ns an element for golomb at density 0.1, 8 for entropy.
FileIndex to_file(const Index& index, std::string_view choice = "auto");

/// The mask of bytes from anywhere: throws Failure that names the fault.
Mask mask_from_file(const Encoding& encoding, int64_t size, int64_t kept,
                    std::span<const uint8_t> bytes);

}  // namespace espalier::sparse
