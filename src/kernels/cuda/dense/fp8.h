#pragma once
// Operands of products in 8 bits (GemmArgs::round_a, round_b), rounded as the codes of wire_format.h
// are, but for their scale, which is found in the same call. Two kernels serve both operands.
#include "src/kernels/kernels.h"

namespace espalier::kernels::ESPALIER_GPU {

/// The operands of a product, rounded, in the device's memory.
struct RoundedOperands {
  void* a = nullptr;
  void* b = nullptr;
  const float* scale_a = nullptr;  ///< [1]
  const float* scale_b = nullptr;
  const float* factors = nullptr;  ///< [2]: scale_a scale_b, and 1 where c is added to, else 0
};

/// Bytes that the functions below need: two for each element of an operand, whatever they are
/// rounded to, so that a plan does not depend on the device.
size_t fp8_workspace(const GemmArgs& args);
/// Codes with the inner extent last, a [M, K] and b [N, K], contiguous: operands that lie otherwise
/// are transposed on the way. M, N and K are multiples of 16.
RoundedOperands round_to_codes(Stream& stream, const GemmArgs& args, std::byte* memory);
/// The numbers as bf16, which is exact, in the shapes of the operands, contiguous.
RoundedOperands round_to_bf16(Stream& stream, const GemmArgs& args, std::byte* memory);

}  // namespace espalier::kernels::ESPALIER_GPU
