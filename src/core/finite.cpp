#include "src/core/finite.h"

#include <algorithm>
#include <cstring>

#include "src/core/error.h"

namespace espalier {
namespace {

/// Whether all bits of `exponent` are set in an element: it is then a NaN or an infinity. Each
/// block is a loop without branches, which compilers vectorize.
template <class Word>
bool any_with(std::span<const std::byte> bytes, Word exponent) {
  constexpr size_t kBlock = 1024;  // elements
  const size_t count = bytes.size() / sizeof(Word);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t end = std::min(begin + kBlock, count);
    Word found = 0;
    for (size_t i = begin; i < end; ++i) {
      Word bits = 0;
      std::memcpy(&bits, bytes.data() + i * sizeof(Word), sizeof(Word));
      found = static_cast<Word>(found | ((bits & exponent) == exponent ? 1 : 0));
    }
    if (found != 0) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool all_finite(std::span<const std::byte> bytes, DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return !any_with<uint32_t>(bytes, 0x7f800000U);
    case DType::bf16:
      return !any_with<uint16_t>(bytes, 0x7f80U);
    case DType::fp16:
      return !any_with<uint16_t>(bytes, 0x7c00U);
    default:
      return true;
  }
}

void check_finite(const Tensor& host, std::string_view file, std::string_view name) {
  check(all_finite(host),
        "{}: \"{}\" has a NaN or an infinity: the training that made it has diverged, or the file "
        "was written wrongly; use an earlier checkpoint, or correct the values",
        file, name);
}

}  // namespace espalier
