#pragma once
// topk: keeps the `kept` largest magnitudes of each bucket; the others become zero.
//
//   bucket   for each kept value, in ascending order of positions: uint16 position in the bucket,
//            bf16 value (to nearest even, but no finite number becomes infinite)
//
//   - Of equal magnitudes, those at lower positions are kept.
//   - A short last bucket keeps all its values, at most `kept`.
//   - A bucket with a NaN or an infinity keeps NaNs.
//   - A bucket decodes to NaN if its positions do not ascend or a value is not finite.
//
// Each backend has its own search for the largest.
#include "src/kernels/rules/wire/arithmetic.h"

namespace espalier::kernels::wire {

struct Topk {
  static constexpr int64_t usual_bucket(int) { return 16'384; }
  static constexpr int64_t bucket_bytes(const WireFormat& format, int64_t n) {
    return 4 * (format.kept < n ? format.kept : n);
  }
  static constexpr WireCodec kEntry{.name = "topk",
                                    .help = "the SHARE of values that are largest in a bucket",
                                    .numbers = WireNumbers::share,
                                    .form = WireForm::whole,
                                    .bits = 0,
                                    .most_bucket = 65'536,
                                    .usual_bucket = usual_bucket,
                                    .bucket_bytes = bucket_bytes};
  static constexpr Find kFind = Find::largest;
  static constexpr uint32_t kNaN = 0x7fc0;  ///< bf16
  static constexpr uint32_t kLargest16 = 0x7f7f;

  /// A kept value: position in the low half, value in the high half.
  ESPALIER_RULE static uint32_t entry(int64_t place, uint32_t value) {
    return static_cast<uint32_t>(place) | value << 16;
  }
  ESPALIER_RULE static int32_t place_of(uint32_t entry) {
    return static_cast<int32_t>(entry & 0xffffU);
  }
  ESPALIER_RULE static float value_of(uint32_t entry) { return float_of(entry & 0xffff0000U); }

  /// bf16 of a finite x.
  ESPALIER_RULE static uint32_t rounded_value(float x) {
    const uint32_t bits = bits_of(x);
    const uint32_t value = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    return (value & 0x7fffU) > kLargest16 ? kLargest16 | (value & 0x8000U) : value;
  }
  /// True if an entry is valid after one at position `before` (-1: none) in a bucket of n values.
  ESPALIER_RULE static bool follows(uint32_t entry, int32_t before, int64_t n) {
    const int32_t place = place_of(entry);
    return place > before && place < n && (entry >> 16 & 0x7fffU) <= kLargest16;
  }
};

}  // namespace espalier::kernels::wire
