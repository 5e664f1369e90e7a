// The kept elements of dyᵀ x: each is a dot product over the tokens. In the tiled form of W
// (tile.h), four rows with about the same number of kept elements are computed together: their dy
// stay in registers, x comes from L1, with one load per fused multiply-add. The lanes of sixteen
// results are added up in registers.
//
// For each block of tokens, all threads pack dy and x (features x tokens); then each thread adds
// the block's part to the results of its own tiles. On CPUs with a matrix unit: matrix_unit.h.
#include <omp.h>

#include "src/kernels/cpu/sparse/matrix_unit.h"
#include "src/kernels/cpu/sparse/sampled.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

struct Memory {
  Sampled sampled;
  float *dy, *x;  ///< packed
};

Memory carve(Carver& carver, const SddmmArgs& args, int threads) {
  const SparseMatrix& weight = args.weight;
  Memory m{.sampled = carve_sampled(carver, weight, args.x.dtype, threads, weight.cols),
           .dy = nullptr,
           .x = nullptr};
  const int64_t row = m.sampled.packed_row();
  m.dy = carver.take<float>((weight.rows + 1) * row);
  m.x = carver.take<float>(weight.cols * row);
  return m;
}

/// One thread's share of a block of tokens: features to pack, then tiles.
void work(const SddmmArgs& args, const Memory& m, int64_t token, int64_t thread, int64_t threads) {
  constexpr int64_t kPiece = 256;  // long enough to stream from memory, short enough for the cache
  const SparseKernels& kernels = m.sampled.kernels;
  const int64_t row = m.sampled.packed_row();
  const Tiles& tiles = m.sampled.tiles.tiles;
  const auto pack = [&](const Tensor& from, float* to) {
    const void* rows[kMostTokens];
    for (int64_t i = 0; i < m.sampled.tokens(); ++i) {
      rows[i] = token + i < from.rows() ? row_bytes(from, token + i) : nullptr;
    }
    const int64_t piece = least(kPiece, divide_up(from.cols(), threads * 64) * 64);
    for (int64_t f = thread * piece; f < from.cols(); f += threads * piece) {
      kernels.pack({rows, f, least(piece, from.cols() - f)}, kernels.dot_vectors, to + f * row);
    }
  };
  pack(args.dy, m.dy);
  pack(args.x, m.x);
#pragma omp barrier
  for (int64_t b = 0; b < tiles.blocks; ++b) {
    for (int64_t p = 0; p < tiles.panels; ++p) {
      const int64_t tile = tiles.at(b, p);
      if (m.sampled.thread_of(tile, threads) == thread) {
        kernels.dot_tile(tiles, tile,
                         {m.dy + b * tiles.block_rows * row, m.x + p * tiles.panel() * row,
                          token > 0, m.sampled.results});
      }
    }
  }
#pragma omp barrier
}

void sample(Stream& stream, const SddmmArgs& args, const Memory& m) {
  const int64_t tokens = args.x.rows();
#pragma omp parallel num_threads(team_of(stream, args.weight.positions.count* tokens))
  {
    const int thread = omp_get_thread_num();
    const int team_size = omp_get_num_threads();
    for (int64_t token = 0; token < tokens; token += m.sampled.tokens()) {
      work(args, m, token, thread, team_size);
    }
  }
}

}  // namespace

void sddmm(Stream& stream, const SddmmArgs& args) {
  const int threads = stream.threads();
  const int64_t count = args.weight.positions.count;
  if (count == 0 || (args.accumulate && args.x.rows() == 0)) {
    return;
  }
  if (samples_on_matrix_unit(args.weight, args.x.dtype, args.x.rows())) {
    matrix_unit_sddmm(stream, args);
    return;
  }
  Carver sizes;
  carve(sizes, args, threads);
  Carver carver{cpu::workspace(stream, sizes.used)};
  if (cpu::is_dry(stream)) {
    return;
  }
  Memory memory = carve(carver, args, threads);
  begin_sums(memory.sampled, args.weight, args.x.rows(), threads);
  sample(stream, args, memory);
  return_values(memory.sampled, args.weight, args.accumulate, threads);
}

}  // namespace espalier::kernels::ESPALIER_ISA
