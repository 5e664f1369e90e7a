// The kept elements of dyᵀ x: each is a dot product over the tokens. In the tiled form of W
// (tile.h), four rows with about the same number of kept elements are computed together: their dy
// stay in registers, x comes from L1, with one load per fused multiply-add. The lanes of sixteen
// results are added up in registers.
//
// For each block of kTokens tokens, all threads pack dy and x (features x tokens); then each thread
// adds the block's part to the results of its own tiles. After the last block, the results (fp32,
// in the order of the tiles) are rounded once and written to their positions.
#include <omp.h>

#include <cstring>

#include "src/kernels/cpu/sparse/tile_kernels.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"

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
  m.results = carver.take<float>(m.tiles.tiles.capacity);
  m.dy = carver.take<float>((weight.rows + 1) * row);
  m.x = carver.take<float>(weight.cols * row);
  return m;
}

/// One thread's share of a block of tokens: features to pack, then tiles, balanced by elements.
void work(const SddmmArgs& args, const Memory& m, int64_t token, int64_t thread, int64_t threads) {
  constexpr int64_t kPiece = 256;  // long enough to stream from memory, short enough for the cache
  const int64_t vectors = m.kernels.dot_vectors;
  const int64_t row = vectors * kLanes;
  const Tiles& tiles = m.tiles.tiles;
  const auto pack = [&](const Tensor& from, float* to) {
    const int64_t piece = least(kPiece, divide_up(from.cols(), threads * 64) * 64);
    for (int64_t f = thread * piece; f < from.cols(); f += threads * piece) {
      m.kernels.pack({from, token, f, least(piece, from.cols() - f)}, vectors, to + f * row);
    }
  };
  pack(args.dy, m.dy);
  pack(args.x, m.x);
#pragma omp barrier
  for (int64_t b = 0; b < tiles.blocks; ++b) {
    for (int64_t p = 0; p < tiles.panels; ++p) {
      const int64_t tile = tiles.at(b, p);
      if (tiles.first[tile] * threads / tiles.capacity == thread) {
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

using Four [[gnu::vector_size(16), gnu::aligned(4), gnu::may_alias]] = float;

/// Transposes four rows.
[[gnu::always_inline]] inline void transpose_fours(Four (&rows)[4]) {
  const Four low01 = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
  const Four high01 = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
  const Four low23 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const Four high23 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  rows[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
  rows[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
  rows[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
  rows[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

template <bool Add, class T>
[[gnu::always_inline]] inline void put(T* to, float value) {
  store(to, Add ? load(to) + value : value);
}

/// Elements e to e + 3 of each row.
template <bool Add>
[[gnu::always_inline]] inline void put_fours(const Four (&fours)[4], int64_t e,
                                             float* const (&to)[4]) {
  for (int r = 0; r < 4; ++r) {
    Four* place = reinterpret_cast<Four*>(to[r] + e);
    *place = Add ? *place + fours[r] : fours[r];
  }
}
template <bool Add, class Half>
[[gnu::always_inline]] inline void put_fours(const Four (&fours)[4], int64_t e,
                                             Half* const (&to)[4]) {
  // Rounds sixteen at a time: they fill a vector, four do not.
  float sums[16];
  Half rounded[16];
  for (int i = 0; i < 16; ++i) {
    sums[i] = Add ? load(to[i / 4] + e + i % 4) + fours[i / 4][i % 4] : fours[i / 4][i % 4];
  }
#pragma omp simd
  for (int i = 0; i < 16; ++i) {
    store(rounded + i, sums[i]);
  }
  for (int r = 0; r < 4; ++r) {
    std::memcpy(to[r] + e, rounded + 4 * r, 4 * sizeof(Half));
  }
}

/// Writes the results of one tile, from[e kSampledRows + r] of each group, to the rows' next
/// positions.
template <bool Add, class T>
void return_tile(const Tiles& tiles, int64_t tile, const float* from, uint32_t* next, T* values) {
  const uint16_t* order = tiles.order + tile * tiles.block_rows;
  const uint8_t* counts = tiles.counts + tile * tiles.block_rows;
  for (const Run* run = tiles.runs + tile * (kPanel + 1); run->rows > 0; ++run) {
    for (const uint16_t* end = order + run->rows; order != end; order += kSampledRows) {
      T* to[kSampledRows];
      int64_t count[kSampledRows];
      for (int r = 0; r < kSampledRows; ++r) {
        count[r] = counts[order[r]];
        to[r] = values + next[order[r]];
        next[order[r]] += static_cast<uint32_t>(count[r]);
      }
      // Rows are sorted: the first has the fewest elements.
      int64_t e = 0;
      for (; e + 4 <= count[0]; e += 4) {
        Four fours[4];
        for (int i = 0; i < 4; ++i) {
          fours[i] = *reinterpret_cast<const Four*>(from + (e + i) * kSampledRows);
        }
        transpose_fours(fours);
        put_fours<Add>(fours, e, to);
      }
      for (int r = 0; r < kSampledRows; ++r) {
        for (int64_t i = e; i < count[r]; ++i) {
          put<Add>(to[r] + i, from[i * kSampledRows + r]);
        }
      }
      from += run->count * kSampledRows;
    }
  }
}

/// values (+)= the results, rounded. Advances the rows' starts to their ends.
void return_values(const Memory& m, const SddmmArgs& args, int threads) {
  const Tiles& tiles = m.tiles.tiles;
  with_type(args.weight.values.dtype, [&](auto type) {
    using T = decltype(type);
    T* values = elements<T>(args.weight.values);
    for_blocks(threads, tiles.blocks, args.weight.positions.size, [&](int64_t block) {
      const int64_t row0 = block * tiles.block_rows;
      uint32_t* next = m.tiles.bits.row_begin + row0;
      // Rows are in the order of each tile, which hardware prefetchers do not follow.
      const T* last = values + next[least(tiles.block_rows, tiles.rows - row0) - 1];
      for (const T* line = values + next[0]; line < last; line += 64 / sizeof(T)) {
        __builtin_prefetch(line, 1, 2);
      }
      for (int64_t panel = 0; panel < tiles.panels; ++panel) {
        const int64_t tile = tiles.at(block, panel);
        const float* from = m.results + tiles.first[tile];
        if (args.accumulate) {
          return_tile<true>(tiles, tile, from, next, values);
        } else {
          return_tile<false>(tiles, tile, from, next, values);
        }
      }
    });
  });
}

}  // namespace

void sddmm(Stream& stream, const SddmmArgs& args) {
  const int threads = stream.threads();
  const int64_t count = args.weight.positions.count;
  if (count == 0 || (args.accumulate && args.x.rows() == 0)) {
    return;
  }
  const SparseKernels kernels = sparse_kernels(args.x.dtype, TileUse::sampled);
  Carver sizes;
  carve(sizes, args.weight, kernels, threads);
  Carver carver{cpu::workspace(stream, sizes.used)};
  if (cpu::is_dry(stream)) {
    return;
  }
  Memory memory = carve(carver, args.weight, kernels, threads);
  make_tiles(memory.tiles, args.weight, TileUse::sampled, threads);
  if (args.x.rows() == 0) {
    std::memset(memory.results, 0,
                static_cast<size_t>(memory.tiles.tiles.capacity) * sizeof(float));
  }
  sample(stream, args, memory);
  return_values(memory, args, threads);
}

}  // namespace espalier::kernels::ESPALIER_ISA
