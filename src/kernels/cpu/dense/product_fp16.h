#pragma once
// Dense products of fp16 operands. oneDNN has none on CPUs without fp16 instructions, so panels of
// both operands are widened to fp32, in scratch of at most 3.5 MiB per call, and multiplied in
// fp32. An element of a is widened once for each 1,024 columns of c, one of b for each 256 rows.
// Sums are fp32 and rounded once.
#include "src/kernels/kernels.h"

namespace espalier::kernels::cpu {

/// Part of an fp16 matrix, and the same numbers contiguous in fp32 (rows `cols` apart).
struct HalfPanel {
  fp16* half = nullptr;
  int64_t stride = 0;
  int64_t rows = 0, cols = 0;
  float* wide = nullptr;
};

/// Loops that are compiled for each instruction set: gemm.cpp.
struct HalfLoops {
  void (*widen)(int threads, const HalfPanel& panel);
  /// half = wide (+ half), rounded.
  void (*narrow)(int threads, const HalfPanel& panel, bool accumulate);
};

/// Like `product` of product.h.
void product_fp16(Stream& stream, const GemmArgs& args, const HalfLoops& loops);

}  // namespace espalier::kernels::cpu
