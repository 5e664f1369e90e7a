// No tables, branches or integers of several widths: these would keep the loops scalar.
#include "src/kernels/cpu/optimizer/dynamic_code.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

template <DynamicMap kMap>
struct Code {
  using Lines = DynamicLines<kMap>;

  template <int kDecade>
  [[gnu::always_inline]] static float lower(float x, float best) {
    constexpr DynamicLine kLine = Lines::line(kDecade);
    const float position = x * kLine.steepness + kLine.offset;
    return position < best ? position : best;
  }

  template <int... kDecades>
  [[gnu::always_inline]] static float lowest(float x, std::integer_sequence<int, kDecades...>) {
    float position = 1024;
    ((position = lower<kDecades>(x, position)), ...);
    return position;
  }

  /// The nearest p to x in [0, 1), except the p of value 1.
  [[gnu::always_inline]] static float nearest(float x) {
    const float position = lowest(x, std::make_integer_sequence<int, 7>{});
    const auto p = static_cast<float>(static_cast<int32_t>(position));
    const bool power_of_2 = (__builtin_bit_cast(uint32_t, p) & 0x7fffffU) == 0;
    const bool before = position - p < Lines::kBorder;
    return (power_of_2 & before) ? p - 1.0F : p;
  }

  /// x is relative to the scale.
  [[gnu::always_inline]] static uint8_t encoded(float x) {
    const float magnitude = __builtin_fabsf(x);
    const float p = nearest(magnitude < Lines::kBelowOne ? magnitude : Lines::kBelowOne);
    float code = Lines::kSigned ? (127.0F + __builtin_copysignf(p, x)) : (p - 1.0F);
    if constexpr (!Lines::kSigned) {
      const float least = magnitude > 0 ? 1.0F : 0.0F;
      code = code > least ? code : least;
    }
    code = x >= Lines::kNearOne ? 255.0F : code;  // the map has no -1
    return static_cast<uint8_t>(static_cast<int32_t>(code));
  }
};

}  // namespace

template <DynamicMap kMap>
void decode(const uint8_t* codes, float scale, int64_t n, float* x) {
#pragma omp simd
  for (int64_t k = 0; k < n; ++k) {
    x[k] = DynamicLines<kMap>::value(codes[k]) * scale;
  }
}

template <DynamicMap kMap>
float encode(const float* x, int64_t n, uint8_t* codes) {
  float high = 0;
  float low = 0;
#pragma omp simd reduction(max : high) reduction(min : low)
  for (int64_t k = 0; k < n; ++k) {
    high = x[k] > high ? x[k] : high;
    low = x[k] < low ? x[k] : low;
  }
  const BlockScale block = block_scale(high, low);
#pragma omp simd
  for (int64_t k = 0; k < n; ++k) {
    codes[k] = Code<kMap>::encoded(x[k] * block.inverse);
  }
  return block.scale;
}

template void decode<DynamicMap::with_sign>(const uint8_t*, float, int64_t, float*);
template void decode<DynamicMap::without_sign>(const uint8_t*, float, int64_t, float*);
template float encode<DynamicMap::with_sign>(const float*, int64_t, uint8_t*);
template float encode<DynamicMap::without_sign>(const float*, int64_t, uint8_t*);

}  // namespace espalier::kernels::ESPALIER_ISA
