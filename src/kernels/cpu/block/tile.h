#pragma once
// The inner loop of all products with blocks: sums [rows][lanes] += a [rows][words] b
// [words][lanes].
//
//   b   `lanes` vector lanes of 32 bits a word, at step k bytes; in a panel side by side
//   a   one word at a time, spread over the lanes: word k of row r lies at a + r stride + offsets[k]
//       bytes, so that rows of activations are read where they are, whatever columns a block keeps
//
// Shapes: 8 rows of 32 lanes, 16 rows of 16: as many sums as hide the latency of a product on all
// instruction sets' registers. Each sum adds its words in order, so it depends on nothing else.
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
/// Words are pairs of bf16 numbers, whose products are exact and summed in fp32. Null where the
/// instruction set has no such product; the caller then widens to fp32.
BlockTiles pair_tiles();

}  // namespace espalier::kernels::ESPALIER_ISA
