#pragma once
// Dense matrix products by oneDNN, for every CPU table. Primitives are created once a shape, layout
// and thread count, and kept by the calling thread; their scratch comes from the stream's
// workspace.
#include "src/kernels/kernels.h"

namespace espalier::kernels::cpu {

/// c = op(a) op(b) (+ c) (+ bias); the rest of `args` is the caller's (gemm.cpp).
void product(Stream& stream, const GemmArgs& args);

}  // namespace espalier::kernels::cpu
