#pragma once
// mma.sync and ldmatrix for the harness, done once by the last of the 32 lanes that meet, with the
// fragments of the PTX ISA (src/kernels/cuda/simt/mma.h shows them).
#include <cstdint>
#include <string>

#include "src/core/types.h"
#include "tests/simt/engine.h"

namespace espalier::simt {

/// What each lane brings.
struct LaneProduct {
  float* c;           ///< [4]
  const uint32_t* a;  ///< [4]
  const uint32_t* b;  ///< [2]
};
struct LaneMatrices {
  uint32_t* r;  ///< [kCount]
  const void* row;
};

/// See Together. Of bf16 or fp16; sums go along k, in fp32.
template <class Half>
std::string multiply_add(void* const (&lanes)[32]);
template <int kCount, bool kTransposed>
std::string load_matrices(void* const (&lanes)[32]);

template <class Half>
uint32_t pack_halves(float low, float high);

}  // namespace espalier::simt
