// The kept elements of dyᵀ x: for each, a dot product over the tokens. In the tiled form of W
// (sparse_tile.h), four rows with the same number of kept elements go side by side: their dy stay
// in registers, x comes from L1, one load for each fused multiply-add; the lanes of four results
// are added up while they are in registers, and those of sixteen a little later.
//
// For each block of kTokens tokens: pack dy and x (features x tokens), shared by the threads; then
// each thread adds the block's part to the results of its own tiles. The results (fp32, in the order
// of the tiles) go to their places, rounded once, after the last block.
#include <omp.h>

#include <cstring>

#include "src/kernels/cpu/sparse_kernels.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

struct Memory {
  SparseKernels kernels;
  TileMemory tiles;
  float* results;  ///< in the order of the tiles
  float *dy, *x;   ///< packed
};

Memory carve(Carver& carver, const SparseMatrix& weight, const SparseKernels& kernels,
             int threads) {
  Memory m{.kernels = kernels, .tiles = carve_tiles(carver, weight, TileUse::sampled, threads)};
  const int64_t row = kernels.dot_vectors * kLanes;
  m.results = carver.take<float>(weight.positions.count + (m.tiles.tiles.tiles() + 1) * kTileSlack);
  m.dy = carver.take<float>(weight.rows * row);
  m.x = carver.take<float>(weight.cols * row);
  return m;
}

/// One thread's share of a block of tokens: features to pack, then tiles, by their elements.
void work(const SddmmArgs& args, const Memory& m, int64_t token, int64_t thread, int64_t threads) {
  constexpr int64_t kPiece = 64;
  const int64_t vectors = m.kernels.dot_vectors;
  const int64_t row = vectors * kLanes;
  const Tiles& tiles = m.tiles.tiles;
  const auto pack = [&](const Tensor& from, float* to) {
    for (int64_t f = thread * kPiece; f < from.cols(); f += threads * kPiece) {
      m.kernels.pack({from, token, f, least(kPiece, from.cols() - f)}, vectors, to + f * row);
    }
  };
  pack(args.dy, m.dy);
  pack(args.x, m.x);
#pragma omp barrier
  const int64_t room = args.weight.positions.count + tiles.tiles() * kTileSlack;
  for (int64_t b = 0; b < tiles.blocks; ++b) {
    for (int64_t p = 0; p < tiles.panels; ++p) {
      const int64_t tile = tiles.at(b, p);
      if (tiles.first[tile] * threads / room == thread) {
        m.kernels.dot_tile(
            tiles, tile,
            {m.dy + b * tiles.block_rows * row, m.x + p * kPanel * row, token > 0, m.results});
      }
    }
  }
#pragma omp barrier
}

void sample(Stream& stream, const SddmmArgs& args, const Memory& m) {
  const int64_t tokens = args.x.rows();
  const int64_t useful = least(stream.threads(), args.weight.positions.count * tokens / kGrain);
  const auto team = static_cast<int>(most(1, useful));
  const int64_t step = m.kernels.dot_vectors * kLanes * m.kernels.lane_tokens;
#pragma omp parallel num_threads(team)
  {
    const int thread = omp_get_thread_num();
    const int team_size = omp_get_num_threads();
    for (int64_t token = 0; token < tokens; token += step) {
      work(args, m, token, thread, team_size);
    }
  }
}

}  // namespace

void sddmm(Stream& stream, const SddmmArgs& args) {
  verify(args);
  const int threads = stream.threads();
  const int64_t count = args.weight.positions.count;
  if (count == 0 || (args.accumulate && args.x.rows() == 0)) {
    return;
  }
  const SparseKernels kernels = sparse_kernels(args.x.dtype);
  Carver sizes;
  carve(sizes, args.weight, kernels, threads);
  Carver carver{cpu::workspace(stream, sizes.used)};
  Memory memory = carve(carver, args.weight, kernels, threads);
  make_tiles(memory.tiles, args.weight, TileUse::sampled, threads);
  if (args.x.rows() == 0) {
    std::memset(
        memory.results, 0,
        static_cast<size_t>(count + memory.tiles.tiles.tiles() * kTileSlack) * sizeof(float));
  }
  sample(stream, args, memory);
  return_values(memory.tiles, memory.results, args.weight, args.accumulate, threads);
}

}  // namespace espalier::kernels::ESPALIER_ISA
