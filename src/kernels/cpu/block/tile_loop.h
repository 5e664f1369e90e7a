#pragma once
// The loop of tile.h for one kind of product: `Product::add(sum, b, a)` on one register.
#include "src/kernels/cpu/block/tile.h"
#include "src/kernels/cpu/simd/lanes.h"
#include "src/kernels/cpu/simd/registers.h"

namespace espalier::kernels::ESPALIER_ISA {

using Lanes [[gnu::vector_size(4 * kLanes)]] = float;
/// Registers for sums; the others hold one vector of b each, and the broadcast word.
inline constexpr int kSumRegisters = kRegisters == 32 ? 24 : 8;

/// A tile of `kRows` rows of `kVectors` registers.
template <class Product, int kRows, int kVectors>
[[gnu::always_inline]] inline void sum_rows(const BlockTile& tile, const std::byte* first,
                                            float* out) {
  Lanes sums[kRows][kVectors]{};
  const int64_t stride = tile.stride;
  const std::byte* vectors = tile.b;
  for (int64_t k = 0; k < tile.words; ++k) {
    Lanes b[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      __builtin_memcpy(&b[v], vectors + v * sizeof(Lanes), sizeof(Lanes));
    }
    vectors += tile.step;
    const std::byte* row = first + tile.offsets[k];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      // Two rows share an address: the load adds the stride for the second.
      const std::byte* at = r % 2 == 0 ? row : row + stride;
      uint32_t word;
      __builtin_memcpy(&word, at, sizeof word);
      row += r % 2 == 0 ? 0 : 2 * stride;
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = Product::add(sums[r][v], b[v], word);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      __builtin_memcpy(out + (r * kVectors + v) * kLanes, &sums[r][v], sizeof(Lanes));
    }
  }
}

template <class Product, int kRows, int kStrip>
void sum_tile(const BlockTile& tile) {
  constexpr int kVectors = kStrip / kLanes;
  constexpr int kMax = kSumRegisters / kVectors;
  constexpr int kTogether = kMax >= kRows ? kRows : kMax >= 4 ? 4 : kMax >= 2 ? 2 : 1;
  for (int r = 0; r < kRows; r += kTogether) {
    sum_rows<Product, kTogether, kVectors>(tile, tile.a + r * tile.stride, tile.sums + r * kStrip);
  }
}

template <class Product>
inline constexpr BlockTiles kTilesOf{sum_tile<Product, kWideRows, cpu::kWideStrip>,
                                     sum_tile<Product, kThinRows, cpu::kThinStrip>};

}  // namespace espalier::kernels::ESPALIER_ISA
