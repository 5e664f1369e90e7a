#pragma once
// Dense products of 16-bit operands on CPUs that multiply fp32 faster, or for which oneDNN has no
// product of them (`multiplies` in product.h). Panels of both operands are widened to fp32, in
// scratch of at most 3.5 MiB per call, and multiplied in fp32. An element of a is widened once for
// each 1,024 columns of c, one of b for each 256 rows. Sums are fp32 and rounded once.
#include "src/kernels/kernels.h"

namespace espalier::kernels::cpu {

/// Loops that are compiled for each instruction set: gemm.cpp. `half` is part of a 16-bit matrix,
/// `wide` the same numbers in fp32.
struct WideningLoops {
  void (*widen)(int threads, const Tensor& half, const Tensor& wide);
  /// half = wide (+ half), rounded.
  void (*narrow)(int threads, const Tensor& wide, const Tensor& half, bool accumulate);
};

/// Like `product` of product.h.
void product_widened(Stream& stream, const GemmArgs& args, const WideningLoops& loops);

}  // namespace espalier::kernels::cpu
