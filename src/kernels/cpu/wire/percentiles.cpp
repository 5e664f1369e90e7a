#include "src/kernels/cpu/wire/percentiles.h"

#include "src/kernels/rules/wire/percentiles.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

using wire::Percentiles;

/// Radix sort, least significant digit first: 31 bits in three digits, so the result is in `spare`.
void sort_bits(uint32_t* keys, uint32_t* spare, int64_t n) {
  constexpr int kDigit = 11;
  constexpr uint32_t kMask = (1U << kDigit) - 1;
  for (int shift = 0; shift < 31; shift += kDigit) {
    uint32_t begin[kMask + 2] = {};
    for (int64_t i = 0; i < n; ++i) {
      ++begin[((keys[i] >> shift) & kMask) + 1];
    }
    for (uint32_t digit = 0; digit < kMask; ++digit) {
      begin[digit + 1] += begin[digit];
    }
    for (int64_t i = 0; i < n; ++i) {
      spare[begin[(keys[i] >> shift) & kMask]++] = keys[i];
    }
    uint32_t* const sorted = spare;
    spare = keys;
    keys = sorted;
  }
}

}  // namespace

void carry_percentiles(int bits, bool bad, const float* x, int64_t n, std::byte* wire) {
  const int64_t count = int64_t{1} << (bits - 1);
  uint32_t keys[Percentiles::kMostNumbers];
  uint32_t sorted[Percentiles::kMostNumbers];
  const int64_t stride = Percentiles::stride_of(n);
  const int64_t taken = divide_up(n, stride);
  for (int64_t i = 0; i < taken; ++i) {
    keys[i] = bits_of(magnitude_of(x[i * stride]));
  }
  if (!bad) {
    sort_bits(keys, sorted, taken);
  }
  for (int64_t k = 1; k <= count; ++k) {
    const uint32_t found = bad ? kNaNBits : sorted[Percentiles::place_of(k, taken, count)];
    __builtin_memcpy(wire + 4 * (k - 1), &found, sizeof found);
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
