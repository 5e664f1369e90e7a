#pragma once
// The results of a sampled product (sddmm.cpp) while it sums over blocks of tokens: fp32, in the
// order of the tiles. After the last block they are rounded once and written to their positions.
#include "src/kernels/cpu/sparse/tile_kernels.h"

namespace espalier::kernels::ESPALIER_ISA {

struct Sampled {
  SparseKernels kernels;
  TileMemory tiles;
  float* results;

  int64_t packed_row() const { return kernels.dot_vectors * kLanes; }    ///< floats
  int64_t tokens() const { return packed_row() * kernels.lane_tokens; }  ///< of a block
  /// Of a convolution: which of `threads` threads sums a tile; all have about as many elements.
  /// (sddmm.cpp divides tiles by itself.)
  int64_t thread_of(int64_t tile, int64_t threads) const {
    const Tiles& all = tiles.tiles;
    const int64_t end = tile + 1 < all.tiles() ? all.first[tile + 1] : all.capacity;
    return (all.first[tile] + end) * threads / (2 * all.capacity);
  }
};

/// For operands of this type; `segment` as in carve_tiles.
Sampled carve_sampled(Carver& carver, const SparseMatrix& weight, DType dtype, int threads,
                      int64_t segment);

/// Builds the tiles. With no tokens to sum over, clears the results.
void begin_sums(Sampled& sampled, const SparseMatrix& weight, int64_t tokens, int threads);

/// Threads that a number of products is worth.
int team_of(const Stream& stream, int64_t products);

/// weight.values (+)= the results, rounded.
void return_values(const Sampled& sampled, const SparseMatrix& weight, bool accumulate,
                   int threads);

}  // namespace espalier::kernels::ESPALIER_ISA
