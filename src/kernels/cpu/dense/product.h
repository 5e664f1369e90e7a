#pragma once
// Dense matrix products by oneDNN, for every CPU table. Primitives are created once a shape, layout
// and thread count, and kept by the calling thread.
#include <cstddef>

#include "src/kernels/kernels.h"

namespace espalier::kernels::cpu {

/// Bytes that `product` needs; addresses do not matter.
size_t product_scratch(const Stream& stream, const GemmArgs& args);
/// c = op(a) op(b) (+ c) (+ bias); the rest of `args` is the caller's (gemm.cpp). `scratch` begins
/// at 64 bytes.
void product(Stream& stream, const GemmArgs& args, std::byte* scratch);

}  // namespace espalier::kernels::cpu
