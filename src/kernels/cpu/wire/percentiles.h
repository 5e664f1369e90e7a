#pragma once
// The codec "table" (rules/wire/percentiles.h): what a bucket carries.
#include <cstddef>

#include "src/kernels/cpu/simd/loops.h"

namespace espalier::kernels::ESPALIER_ISA {

/// Writes the bucket's magnitudes, 2^(bits-1); NaN if `bad`.
void carry_percentiles(int bits, bool bad, const float* x, int64_t n, std::byte* wire);

}  // namespace espalier::kernels::ESPALIER_ISA
