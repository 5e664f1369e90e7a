#pragma once
// Dense matrix products by oneDNN, for every CPU table. Primitives are cached per shape, layout,
// thread count and calling thread.
#include <cstddef>

#include "src/kernels/kernels.h"

namespace espalier::kernels::cpu {

/// Whether `product` takes operands of this type: fp32, and bf16 where oneDNN multiplies it faster
/// than fp32. Others are widened (product_widened.h).
bool multiplies(DType dtype);

/// Bytes of scratch that `product` needs; addresses do not matter.
size_t product_scratch(const Stream& stream, const GemmArgs& args);
/// c = op(a) op(b) (+ c) (+ bias); the caller (gemm.cpp) handles the rest of `args`. `scratch` is
/// 64-byte aligned.
void product(Stream& stream, const GemmArgs& args, std::byte* scratch);

}  // namespace espalier::kernels::cpu
