#pragma once
// 8-bit codes of the dynamic map (rules/dynamic_map.h), at most one block of kQuantizeBlock numbers
// at a time. CMake chooses one of two implementations: loops that the compiler vectorises
// (dynamic_code_plain.cpp), or permutes of AVX-512 (dynamic_code_avx512.cpp).
//
// Scale of a block: its element of largest magnitude, with its sign, so that this element is
// exactly +1 times the scale. Blocks below 2^-104 become zero: their values would lose bits as
// subnormal numbers, and decoding then encoding would change codes. Without sign, a number above
// zero never gets the code of zero. The second moment of AdamW is a divisor: a step m / (sqrt(0) +
// epsilon) can be 10^6 times too long (bitsandbytes allows it). The smallest code, 3.25e-7 of the
// block's largest, makes such steps shorter instead.
#include <cstdint>

#include "src/kernels/rules/dynamic_lines.h"

namespace espalier::kernels::ESPALIER_ISA {

/// x[k] = map[codes[k]] scale
template <DynamicMap kMap>
void decode(const uint8_t* codes, float scale, int64_t n, float* x);

/// Encodes and returns the scale. Infinities and NaN are stored as finite numbers.
template <DynamicMap kMap>
float encode(const float* x, int64_t n, uint8_t* codes);

}  // namespace espalier::kernels::ESPALIER_ISA
