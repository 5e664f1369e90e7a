// No tables, branches or integers of several widths: these would keep the loops scalar.
#include "src/kernels/cpu/optimizer/dynamic_code.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

template <DynamicMap kMap>
struct Code {
  using Lines = DynamicLines<kMap>;

  template <int kDecade>
  [[gnu::always_inline]] static float higher(float middle, float best) {
    constexpr DynamicLine kLine = Lines::line(kDecade);
    const float value = middle * kLine.slope + kLine.start;
    return value > best ? value : best;
  }

  template <int kDecade>
  [[gnu::always_inline]] static float lower(float x, float best) {
    constexpr DynamicLine kLine = Lines::line(kDecade);
    const float position = x * kLine.steepness + kLine.offset;
    return position < best ? position : best;
  }

  [[gnu::always_inline]] static float value(float p) {
    const float middle = p + 0.5F;
    float best = 0;
    best = higher<0>(middle, best);
    best = higher<1>(middle, best);
    best = higher<2>(middle, best);
    best = higher<3>(middle, best);
    best = higher<4>(middle, best);
    best = higher<5>(middle, best);
    best = higher<6>(middle, best);
    return best < 1.0F ? best : 1.0F;
  }

  /// The nearest p to x in [0, 1), except the p of value 1.
  [[gnu::always_inline]] static float nearest(float x) {
    float position = 1024;
    position = lower<0>(x, position);
    position = lower<1>(x, position);
    position = lower<2>(x, position);
    position = lower<3>(x, position);
    position = lower<4>(x, position);
    position = lower<5>(x, position);
    position = lower<6>(x, position);
    const auto p = static_cast<float>(static_cast<int32_t>(position));
    const bool power_of_2 = (__builtin_bit_cast(uint32_t, p) & 0x7fffffU) == 0;
    const bool before = position - p < Lines::kBorder;
    return power_of_2 & before ? p - 1.0F : p;
  }

  [[gnu::always_inline]] static float decoded(uint8_t code) {
    if constexpr (Lines::kSigned) {
      const auto p = static_cast<float>(code - 127);
      return __builtin_copysignf(value(__builtin_fabsf(p)), p);
    }
    return value(static_cast<float>(code + 1));
  }

  /// x is relative to the scale.
  [[gnu::always_inline]] static uint8_t encoded(float x) {
    const float magnitude = __builtin_fabsf(x);
    const float p = nearest(magnitude < Lines::kBelowOne ? magnitude : Lines::kBelowOne);
    float code = Lines::kSigned ? 127.0F + __builtin_copysignf(p, x) : p - 1.0F;
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
    x[k] = Code<kMap>::decoded(codes[k]) * scale;
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
