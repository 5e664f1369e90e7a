#pragma once
// Rounds operands of products to 8 bits (GemmArgs::round_a, round_b). The rounding is that of the
// codes of wire_format.h; the scale is computed in the same call. Two kernels serve both operands.
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_GPU {

/// The rounded operands of a product, in device memory.
struct RoundedOperands {
  void* a = nullptr;
  void* b = nullptr;
  const float* scale_a = nullptr;  ///< [1]
  const float* scale_b = nullptr;
  const float* factors = nullptr;  ///< [2]: scale_a scale_b, and 1 if the product adds to c, else 0
};

/// Bytes of memory for the functions below: two per element of an operand, for either result, so
/// that a plan does not depend on the device.
size_t fp8_workspace(const GemmArgs& args);
/// Returns codes with the inner extent last, a [M, K] and b [N, K], contiguous. Operands in another
/// order are transposed on the way. M, N and K are multiples of 16.
RoundedOperands round_to_codes(Stream& stream, const GemmArgs& args, std::byte* memory);
/// Returns the rounded values as bf16, which is exact, in the shapes of the operands, contiguous.
RoundedOperands round_to_bf16(Stream& stream, const GemmArgs& args, std::byte* memory);

}  // namespace espalier::kernels::ESPALIER_GPU
