// Ascending positions, 32 bits each.
#include <algorithm>
#include <cstring>

#include "sparse/index/encoding.h"
#include "src/core/error.h"

namespace espalier::sparse {
namespace {

std::span<const int32_t> list(const Coded& coded) {
  return {reinterpret_cast<const int32_t*>(coded.data.data()), static_cast<size_t>(coded.kept)};
}

size_t exact_bytes(const Mask&, const Counts& counts) {
  return static_cast<size_t>(counts.kept) * sizeof(int32_t);
}

void encode(const Mask& mask, const Counts& counts, std::span<uint8_t> data) {
  const uint32_t before = 0;  // the decoder then starts at the first word
  bitmap_coding::decode(
      mask.words(), {&before, 1}, 0,
      {reinterpret_cast<int32_t*>(data.data()), static_cast<size_t>(counts.kept)});
}

void check_data(const Coded& coded) {
  const auto count = static_cast<size_t>(coded.kept);
  check(coded.data.size() == count * sizeof(int32_t),
        "int32 index: {} kept elements need {} bytes, there are {}", coded.kept,
        count * sizeof(int32_t), coded.data.size());
  int64_t last = -1;
  for (size_t i = 0; i < count; ++i) {
    int32_t position = 0;
    std::memcpy(&position, coded.data.data() + i * sizeof(int32_t), sizeof(int32_t));
    check(position > last && position < coded.size,
          "int32 index: position {} of kept element {} must lie above {} and below {}", position, i,
          last, coded.size);
    last = position;
  }
}

void decode(const Coded& coded, int64_t first, std::span<int32_t> out) {
  std::ranges::copy(list(coded).subspan(static_cast<size_t>(first), out.size()), out.begin());
}

int64_t kept_before(const Coded& coded, int64_t dense) {
  return std::ranges::lower_bound(list(coded), dense) - list(coded).begin();
}

constexpr Coding kCoding{.exact_bytes = exact_bytes,
                         .encode = encode,
                         .check = check_data,
                         .decode = decode,
                         .kept_before = kept_before};

}  // namespace

constinit const Encoding Encoding::int32{
    .name = "int32",
    .help = "4 bytes a kept element: ascending positions, as SAMO stores them",
    .coding = &kCoding,
    .kernel_form = KernelForm::list};

}  // namespace espalier::sparse
