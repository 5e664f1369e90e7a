// y = x Wᵀ and dx = dy W for unstructured W, by the same code, with the tiled form (tile.h) of W or
// of its transpose. An output row of a block of tokens is a few vector registers. For every kept
// element, its value, in all lanes, times a packed row of activations, from L1, is added: one load
// per fused multiply-add, the most that a core sustains at full speed.
//
// For each block of kTokens tokens:
//   - pack its activations (features x tokens)
//   - for each band of output rows that fits the L2 cache, accumulate in the band over all panels
//   - transpose the band into the result, with bias, activation and rounding
// Threads split the blocks of tokens. On CPUs with a matrix unit: matrix_unit.h.
#include <cstring>

#include "src/kernels/cpu/sparse/band.h"
#include "src/kernels/cpu/sparse/matrix_unit.h"
#include "src/kernels/cpu/sparse/tile_kernels.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kBandBytes = 256 * 1024;  ///< part of L2 for output rows

struct Memory {
  TileMemory tiles;
  std::byte* threads = nullptr;  ///< per thread: packed activations, then a band
  size_t each = 0;
  int64_t packed_row = 0;   ///< floats of a packed feature
  int64_t band_row = 0;     ///< floats of one output row
  int64_t band_blocks = 0;  ///< blocks of rows in a band

  float* packed(int thread) const {
    return reinterpret_cast<float*>(threads + each * static_cast<size_t>(thread));
  }
};

Memory carve(Carver& carver, const SparseMatrix& weight, TileUse use, const SparseKernels& kernels,
             int threads) {
  Memory m{.tiles = carve_tiles(carver, weight, use, kernels.values, threads, weight.cols)};
  const Tiles& tiles = m.tiles.tiles;
  m.packed_row = kernels.vectors * kLanes;
  m.band_row = m.packed_row * kernels.lane_tokens;
  m.band_blocks = most(1, kBandBytes / (m.band_row * 4) / most(1, tiles.block_rows));
  Carver part;
  part.take<float>(tiles.cols * m.packed_row);
  part.take<float>(m.band_blocks * tiles.block_rows * m.band_row);
  m.each = part.used;
  m.threads = carver.take<std::byte>(static_cast<int64_t>(m.each) * threads);
  return m;
}

void product(Stream& stream, const SparseMatrix& weight, TileUse use, const Tensor& x,
             const Epilogue& epilogue) {
  const int threads = stream.threads();
  const int64_t tokens = x.rows();
  if (tokens == 0 || epilogue.out.cols() == 0) {
    return;
  }
  if (uses_matrix_unit(weight, x.dtype, tokens)) {
    matrix_unit_product(stream, weight, use, x, epilogue);
    return;
  }
  const SparseKernels kernels = sparse_kernels(x.dtype);
  Carver sizes;
  carve(sizes, weight, use, kernels, threads);
  Carver carver{cpu::workspace(stream, sizes.used)};
  if (cpu::is_dry(stream)) {
    return;
  }
  Memory m = carve(carver, weight, use, kernels, threads);
  make_tiles(m.tiles, weight, use, threads);
  const Tiles& tiles = m.tiles.tiles;
  const PutBand put = put_band_for(epilogue, x.dtype);
  const int64_t step = m.band_row;  // one float of the band per token
  for_blocks(threads, divide_up(tokens, step), tokens * tiles.rows, [&](int64_t block) {
    const int64_t token = block * step;
    float* packed = m.packed(thread_index());
    float* band = packed + divide_up(tiles.cols * m.packed_row, 16) * 16;
    const void* from[kMostTokens];
    int64_t to[kMostTokens];
    for (int64_t i = 0; i < step; ++i) {
      const bool exists = token + i < tokens;
      from[i] = exists ? row_bytes(x, token + i) : nullptr;
      to[i] = exists ? token + i : -1;
    }
    kernels.pack({from, 0, tiles.cols}, kernels.vectors, packed);
    for (int64_t first = 0; first < tiles.blocks; first += m.band_blocks) {
      const int64_t end = least(tiles.blocks, first + m.band_blocks);
      const int64_t row0 = first * tiles.block_rows;
      const int64_t rows = least(tiles.rows, end * tiles.block_rows) - row0;
      std::memset(band, 0, static_cast<size_t>(rows * m.band_row) * sizeof(float));
      for (int64_t panel = 0; panel < tiles.panels; ++panel) {
        for (int64_t b = first; b < end; ++b) {
          kernels.add_tile(tiles, tiles.at(b, panel), packed + panel * tiles.panel() * m.packed_row,
                           band + (b - first) * tiles.block_rows * m.band_row);
        }
      }
      put(epilogue, band, {to, row0, rows, kernels.lane_tokens, m.band_row});
    }
  });
}

}  // namespace

void spmm(Stream& stream, const SpmmArgs& args) {
  product(stream, args.weight, TileUse::product, args.x,
          {.bias = elements<const float>(args.bias),
           .activation = args.activation,
           .out = args.y,
           .activated = args.activated,
           .accumulate = args.accumulate});
}

void spmm_transposed(Stream& stream, const SpmmTransposedArgs& args) {
  product(stream, args.weight, TileUse::transposed, args.dy,
          {.activation = args.activation,
           .out = args.dx,
           .preactivation = args.preactivation,
           .accumulate = args.accumulate});
}

}  // namespace espalier::kernels::ESPALIER_ISA
