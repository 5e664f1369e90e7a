#pragma once
// The bucket header of codec "table" (rules/wire/percentiles.h).
#include <cstddef>

#include "src/kernels/cpu/simd/loops.h"

namespace espalier::kernels::ESPALIER_ISA {

/// Writes the bucket's 2^(bits-1) magnitudes; NaN if `bad`.
void carry_percentiles(int bits, bool bad, const float* x, int64_t n, std::byte* wire);

}  // namespace espalier::kernels::ESPALIER_ISA
