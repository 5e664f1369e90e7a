#pragma once
// The inner loop of all products with blocks: sums [rows][lanes] += a [rows][words] b
// [words][lanes].
//
//   b   `lanes` vector lanes of 32 bits per word, `step` bytes from word to word; contiguous in a
//       panel
//   a   one word at a time, broadcast to the lanes: word k of row r is at a + r stride + offsets[k]
//       bytes, so rows of activations are read in place, for any columns of kept blocks
//
// Shapes: 8 rows of 32 lanes, 16 rows of 16; these have enough sums to hide the latency of a
// product on all instruction sets. Each sum adds its words in order; the result depends on nothing
// else.
#include <cstddef>
#include <cstdint>

#include "src/kernels/cpu/block/plan.h"

namespace espalier::kernels::ESPALIER_ISA {

struct BlockTile {
  const std::byte* a = nullptr;
  int64_t stride = 0;  ///< bytes
  const int32_t* offsets = nullptr;
  int64_t words = 0;
  const std::byte* b = nullptr;
  int64_t step = 0;       ///< bytes
  float* sums = nullptr;  ///< [rows][lanes], overwritten
};

inline constexpr int64_t kWideRows = 8;   ///< of a tile with cpu::kWideStrip lanes
inline constexpr int64_t kThinRows = 16;  ///< of a tile with cpu::kThinStrip lanes

using BlockTileFunction = void (*)(const BlockTile&);
struct BlockTiles {
  BlockTileFunction wide, thin;
};

/// Words are fp32 numbers.
BlockTiles fp32_tiles();
/// Words are pairs of bf16 numbers; products are exact and summed in fp32. Null if the instruction
/// set has no such product; the caller then widens to fp32.
BlockTiles pair_tiles();

}  // namespace espalier::kernels::ESPALIER_ISA
