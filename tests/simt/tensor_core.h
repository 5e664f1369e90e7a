#pragma once
// mma.sync and ldmatrix for the harness. The last of the 32 lanes to arrive runs them once, with
// the fragments of the PTX ISA (src/kernels/cuda/simt/mma.h shows them).
#include <cstdint>
#include <string>

#include "src/core/types.h"
#include "tests/simt/engine.h"

namespace espalier::simt {

/// Arguments of one lane.
struct LaneProduct {
  float* c;           ///< [4]
  const uint32_t* a;  ///< [4]
  const uint32_t* b;  ///< [2]
};
struct LaneMatrices {
  uint32_t* r;  ///< [kCount]
  const void* row;
};

/// See Together. Operands are bf16 or fp16; sums run along k, in fp32.
template <class Half>
std::string multiply_add(void* const (&lanes)[32]);
template <int kCount, bool kTransposed>
std::string load_matrices(void* const (&lanes)[32]);

template <class Half>
uint32_t pack_halves(float low, float high);

}  // namespace espalier::simt
