#include "sparse/index/file_index.h"

#include "src/core/error.h"

namespace espalier::sparse {

FileIndex to_file(const Index& index, std::string_view choice) {
  if (index.encoding() == Encoding::full) {
    return {};
  }
  const Encoding& same = index.encoding();
  const Encoding& encoding = choice == "same"   ? same
                             : choice == "auto" ? Encoding::golomb
                                                : encoding_by_name(choice);
  check(encoding != Encoding::full && (encoding == same || encoding.rules == nullptr),
        "sparse.file_index = \"{}\" cannot hold every mask: use \"auto\" or \"same\"", choice);
  if (encoding == same) {
    return {same, index.to_bytes()};
  }
  const Mask mask = index.mask();
  Arena arena;
  FileIndex coded{encoding, encoding.file != nullptr ? encoding.file->encode(mask, index.shape())
                                                     : Index(arena, mask, encoding).to_bytes()};
  if (choice == "auto" && same.rules != nullptr) {
    std::vector<uint8_t> natural = index.to_bytes();
    if (natural.size() <= coded.bytes.size()) {
      return {same, std::move(natural)};
    }
  }
  return coded;
}

Mask mask_from_file(const Encoding& encoding, int64_t size, int64_t kept,
                    std::span<const uint8_t> bytes) {
  if (encoding.file != nullptr) {
    return encoding.file->decode(size, kept, bytes);
  }
  if (encoding.coding->checked_mask != nullptr) {
    check_counts(size, kept);
    return encoding.coding->checked_mask(
        {.size = size, .kept = kept, .shape = {}, .data = bytes, .prefix_counts = {}});
  }
  Arena arena;
  return Index::from_bytes(arena, encoding, size, kept, bytes).mask();
}

}  // namespace espalier::sparse
