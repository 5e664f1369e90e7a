#include <immintrin.h>

#include "src/kernels/cpu/sparse/tile_kernels.h"
#include "src/kernels/cpu/tables.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// sum + the two products of each lane. Products are exact; subnormal operands count as zero.
[[gnu::always_inline]] inline Vector dot_pairs(Vector sum, Vector a, Vector b) {
  return __builtin_bit_cast(
      Vector, _mm512_dpbf16_ps(__builtin_bit_cast(__m512, sum), __builtin_bit_cast(__m512bh, a),
                               __builtin_bit_cast(__m512bh, b)));
}

/// Lanes of two bf16; the even token is in the low half.
struct PairMath {
  static constexpr int kLaneTokens = 2;
  static constexpr int kElements = 2;
  using Value = uint32_t;  ///< two bf16, the first in the low half
  static constexpr int kVectors = 2;
  static constexpr int kDotVectors = 4;

  template <bool Whole, class T>
  [[gnu::always_inline]] static Vector read(const T* const* rows, int64_t feature, int64_t n) {
    const Vector even = FloatMath::read<Whole>(rows, feature, n);
    const Vector odd = FloatMath::read<Whole>(rows + 1, feature, n);
    return __builtin_bit_cast(
        Vector, (__builtin_bit_cast(Words, even) >> 16) | __builtin_bit_cast(Words, odd));
  }
  /// In each quarter of x[0] and x[1], sum[0] takes the four low tokens, sum[1] the four high ones.
  [[gnu::always_inline]] static void add(Vector (&sum)[2], uint32_t value, const Vector (&x)[2]) {
    const auto values = __builtin_bit_cast(Vector, _mm512_set1_epi32(static_cast<int>(value)));
    const auto first = __builtin_bit_cast(__m512i, x[0]);
    auto second = __builtin_bit_cast(__m512i, x[1]);
    asm("" : "+v"(second));  // else GCC loads it twice, for each unpack: loads are the bottleneck
    const auto low = __builtin_bit_cast(Vector, _mm512_unpacklo_epi16(first, second));
    const auto high = __builtin_bit_cast(Vector, _mm512_unpackhi_epi16(first, second));
    sum[0] = dot_pairs(sum[0], values, low);
    sum[1] = dot_pairs(sum[1], values, high);
  }
  [[gnu::always_inline]] static Vector dot(Vector sum, Vector a, Vector b) {
    return dot_pairs(sum, a, b);
  }
};

/// Where dot_pairs are slow, fp32 arithmetic is faster.
bool multiplies_pairs() {
  static const bool slow = cpu::has_slow_bf16_pairs();
  return !slow;
}

}  // namespace

SparseKernels sparse_kernels(DType dtype) {
  return dtype == DType::bf16
             ? (multiplies_pairs() ? kernels_of<PairMath, bf16>() : kernels_of<FloatMath, bf16>())
         : dtype == DType::fp16 ? kernels_of<FloatMath, fp16>()
                                : kernels_of<FloatMath, float>();
}

}  // namespace espalier::kernels::ESPALIER_ISA
