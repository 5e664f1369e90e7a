#pragma once
// 8-bit codes of the dynamic map (rules/dynamic_map.h), a block of at most kQuantizeBlock numbers at a
// time. Two implementations, chosen by CMake: loops that the compiler vectorises
// (dynamic_code_plain.cpp), and permutes of AVX-512 (dynamic_code_avx512.cpp).
//
// Scale of a block: its element of largest magnitude, with its sign, so that it is +1 times the
// scale. Blocks below 2^-104 become zero: their values would lose bits as subnormal numbers, and
// codes would not survive being decoded and encoded. Without sign, a number above zero never gets
// the code of zero: the second moment of AdamW is divided by, and a step m / (sqrt(0) + epsilon)
// can be 10^6 times too long (bitsandbytes lets it happen); the smallest code, 3.25e-7 of the
// block's largest, makes such steps shorter instead.
#include <cstdint>

#include "src/kernels/rules/dynamic_lines.h"

namespace espalier::kernels::ESPALIER_ISA {

/// x[k] = map[codes[k]] scale
template <DynamicMap kMap>
void decode(const uint8_t* codes, float scale, int64_t n, float* x);

/// Returns the scale. Infinities and NaN are stored as finite numbers.
template <DynamicMap kMap>
float encode(const float* x, int64_t n, uint8_t* codes);

/// The scale of a block, and what to multiply its numbers with.
struct BlockScale {
  float scale, inverse;
};

/// `high` and `low`: the largest and smallest number, zero at least and at most.
[[gnu::always_inline]] inline BlockScale block_scale(float high, float low) {
  constexpr float kMost = 0x1.fffffep127F;
  high = high < kMost ? high : kMost;
  low = low > -kMost ? low : -kMost;
  const float scale = high >= -low ? high : low;
  const bool zero = __builtin_fabsf(scale) < 0x1p-104F;
  return {zero ? 0.0F : scale, zero ? 0.0F : 1.0F / scale};
}

}  // namespace espalier::kernels::ESPALIER_ISA
