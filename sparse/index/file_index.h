#pragma once
// Masks in files (docs/formats.md): written as golomb, which is within 3 % of the entropy of random
// masks, or in the encoding in memory where that needs a form of masks and is smaller. Files of
// earlier versions have any encoding.
#include <cstdint>
#include <span>
#include <vector>

#include "sparse/index/index.h"

namespace espalier::sparse {

struct FileIndex {
  Encoding encoding = Encoding::full;
  std::vector<uint8_t> bytes;
};

/// About 0.6 ns an element for golomb at density 0.1.
FileIndex to_file(const Index& index);
/// For tests, as earlier versions wrote it: in the encoding of `index`, or in one that holds any
/// mask. A full index is full with any.
FileIndex to_file(const Index& index, const Encoding& encoding);

/// The mask of bytes from anywhere: throws Failure that names the fault.
Mask mask_from_file(const Encoding& encoding, int64_t size, int64_t kept,
                    std::span<const uint8_t> bytes);

}  // namespace espalier::sparse
