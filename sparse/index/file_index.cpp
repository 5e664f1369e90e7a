#include "sparse/index/file_index.h"

#include "sparse/index/codings.h"
#include "src/core/error.h"

namespace espalier::sparse {

FileIndex to_file(const Index& index, std::string_view choice) {
  if (index.encoding() == Encoding::full) {
    return {};
  }
  const Encoding same = index.encoding();
  const Encoding encoding = choice == "same"   ? same
                            : choice == "auto" ? Encoding::entropy
                                               : encoding_by_name(choice);
  check(encoding != Encoding::full &&
            (encoding == same || (encoding != Encoding::nm && encoding != Encoding::block)),
        "sparse.file_index = \"{}\" cannot hold every mask: use \"auto\" or \"same\"", choice);
  if (encoding == same) {
    return {same, index.to_bytes()};
  }
  const Mask mask = index.mask();
  if (encoding != Encoding::entropy) {
    Arena arena;
    return {encoding, Index(arena, mask, encoding).to_bytes()};
  }
  FileIndex coded{encoding, entropy_coding::encode(mask, index.shape())};
  if (choice == "auto" && (same == Encoding::nm || same == Encoding::block)) {
    std::vector<uint8_t> natural = index.to_bytes();
    if (natural.size() <= coded.bytes.size()) {
      return {same, std::move(natural)};
    }
  }
  return coded;
}

Mask mask_from_file(Encoding encoding, int64_t size, int64_t kept, std::span<const uint8_t> bytes) {
  if (encoding == Encoding::entropy) {
    return entropy_coding::decode(size, kept, bytes);
  }
  Arena arena;
  return Index::from_bytes(arena, encoding, size, kept, bytes).mask();
}

}  // namespace espalier::sparse
