#include "src/kernels/cpu/sparse/sampled.h"

#include <cstring>

#include "src/kernels/cpu/support.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

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
  for (const Run* run = tiles.runs_of(tile); run->rows > 0; ++run) {
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

}  // namespace

Sampled carve_sampled(Carver& carver, const SparseMatrix& weight, DType dtype, int threads,
                      int64_t segment) {
  Sampled s{
      .kernels = sparse_kernels(dtype),
      .tiles = carve_tiles(carver, weight, TileUse::sampled, TileValues::fp32, threads, segment),
      .results = nullptr};
  s.results = carver.take<float>(s.tiles.tiles.capacity);
  return s;
}

void begin_sums(Sampled& sampled, const SparseMatrix& weight, int64_t tokens, int threads) {
  make_tiles(sampled.tiles, weight, TileUse::sampled, threads);
  if (tokens == 0) {
    std::memset(sampled.results, 0,
                static_cast<size_t>(sampled.tiles.tiles.capacity) * sizeof(float));
  }
}

int team_of(const Stream& stream, int64_t products) {
  return static_cast<int>(most(1, least(stream.threads(), products / kGrain)));
}

void return_values(const Sampled& sampled, const SparseMatrix& weight, bool accumulate,
                   int threads) {
  const Tiles& tiles = sampled.tiles.tiles;
  with_type(weight.values.dtype, [&](auto type) {
    using T = decltype(type);
    T* values = elements<T>(weight.values);
    for_blocks(threads, tiles.blocks, weight.positions.size, [&](int64_t block) {
      const int64_t row0 = block * tiles.block_rows;
      const int64_t rows = least(tiles.block_rows, tiles.rows - row0);
      uint32_t next[kMostTileRows + 1] = {};  // a row that does not exist is in the last place
      std::memcpy(next, sampled.tiles.bits.row_begin + row0,
                  static_cast<size_t>(rows) * sizeof(uint32_t));
      // Rows are in the order of each tile, which hardware prefetchers do not follow.
      const T* last = values + next[rows - 1];
      for (const T* line = values + next[0]; line < last; line += 64 / sizeof(T)) {
        __builtin_prefetch(line, 1, 2);
      }
      for (int64_t panel = 0; panel < tiles.panels; ++panel) {
        const int64_t tile = tiles.at(block, panel);
        const float* from = sampled.results + tiles.first[tile];
        if (accumulate) {
          return_tile<true>(tiles, tile, from, next, values);
        } else {
          return_tile<false>(tiles, tile, from, next, values);
        }
      }
    });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
