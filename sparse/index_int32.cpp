#include <algorithm>
#include <cstring>

#include "sparse/index_codings.h"
#include "src/core/error.h"

namespace espalier::sparse::int32_coding {

void encode(const Mask& mask, std::span<int32_t> out) {
  const uint32_t before = 0;  // the decoder then starts at the first word
  bitmap_coding::decode(mask.words(), {&before, 1}, 0, out);
}

void check_bytes(std::span<const uint8_t> bytes, int64_t size, int64_t kept) {
  const auto count = static_cast<size_t>(kept);
  check(bytes.size() == count * sizeof(int32_t),
        "int32 index: {} kept elements need {} bytes, there are {}", kept, count * sizeof(int32_t),
        bytes.size());
  int64_t last = -1;
  for (size_t i = 0; i < count; ++i) {
    int32_t position = 0;
    std::memcpy(&position, bytes.data() + i * sizeof(int32_t), sizeof(int32_t));
    check(position > last && position < size,
          "int32 index: position {} of kept element {} must lie above {} and below {}", position, i,
          last, size);
    last = position;
  }
}

int64_t kept_before(std::span<const int32_t> positions, int64_t dense) {
  return std::ranges::lower_bound(positions, dense) - positions.begin();
}

}  // namespace espalier::sparse::int32_coding
