#include "sparse/index/file_index.h"

#include "src/core/error.h"

namespace espalier::sparse {

FileIndex to_file(const Index& index) {
  FileIndex coded = to_file(index, Encoding::golomb);
  if (index.encoding().rules != nullptr) {
    FileIndex natural = to_file(index, index.encoding());
    if (natural.bytes.size() <= coded.bytes.size()) {
      return natural;
    }
  }
  return coded;
}

FileIndex to_file(const Index& index, const Encoding& encoding) {
  const Encoding& same = index.encoding();
  if (same == Encoding::full) {
    return {};
  }
  if (encoding == same) {
    return {same, index.to_bytes()};
  }
  require(encoding != Encoding::full && encoding.rules == nullptr, "an encoding of any mask",
          encoding.name);
  Arena arena;
  return {encoding, Index(arena, index.mask(), encoding).to_bytes()};
}

Mask mask_from_file(const Encoding& encoding, int64_t size, int64_t kept,
                    std::span<const uint8_t> bytes) {
  if (encoding.coding->checked_mask != nullptr) {
    check_counts(size, kept);
    return encoding.coding->checked_mask(
        {.size = size, .kept = kept, .shape = {}, .data = bytes, .prefix_counts = {}});
  }
  Arena arena;
  return Index::from_bytes(arena, encoding, size, kept, bytes).mask();
}

}  // namespace espalier::sparse
