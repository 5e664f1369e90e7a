#include "src/kernels/cpu/sparse/sampled.h"

#include <cstring>

#include "src/kernels/cpu/simd/vector.h"
#include "src/kernels/cpu/support.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

/// The next n <= kLanes values of a row, before `end`. Whole vectors where they end before it: what
/// follows the row is written unchanged.
template <bool Add, class T>
[[gnu::always_inline]] inline void put_row(Vector results, int64_t n, const T* end, T* to) {
  if (to + kLanes > end) {
    float lanes[kLanes];
    write_vector(lanes, results);
    for (int64_t i = 0; i < n; ++i) {
      store(to + i, Add ? load(to + i) + lanes[i] : lanes[i]);
    }
    return;
  }
  const Vector old = read_vector(to);
  write_vector(to, first_lanes(n, Add ? old + results : results, old));
}

/// Writes the results of one tile, from[e kSampledRows + r] of each group, to the rows' next
/// positions, all before `end`.
template <bool Add, class T>
void return_tile(const Tiles& tiles, int64_t tile, const float* from, const T* end, uint32_t* next,
                 T* values) {
  const uint16_t* order = tiles.order + tile * tiles.block_rows;
  const uint8_t* counts = tiles.counts + tile * tiles.block_rows;
  for (const Run* run = tiles.runs_of(tile); run->rows > 0; ++run) {
    for (const uint16_t* last = order + run->rows; order != last; order += kSampledRows) {
      for (int64_t e = 0; e < run->count; e += kLanes) {
        const float* part = from + e * kSampledRows;
        Vector rows[kSampledRows] = {read_vector(part), read_vector(part + kLanes),
                                     read_vector(part + 2 * kLanes),
                                     read_vector(part + 3 * kLanes)};
        rows_of_four(rows);
        for (int r = 0; r < kSampledRows; ++r) {
          const int64_t n = least(kLanes, counts[order[r]] - e);
          if (n > 0) {
            put_row<Add>(rows[r], n, end, values + next[order[r]] + e);
          }
        }
      }
      for (int r = 0; r < kSampledRows; ++r) {
        next[order[r]] += counts[order[r]];
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
      const T* end = values + sampled.tiles.bits.row_begin[row0 + rows];
      for (const T* line = values + next[0]; line < end; line += 64 / sizeof(T)) {
        __builtin_prefetch(line, 1, 2);
      }
      for (int64_t panel = 0; panel < tiles.panels; ++panel) {
        const int64_t tile = tiles.at(block, panel);
        const float* from = sampled.results + tiles.first[tile];
        if (accumulate) {
          return_tile<true>(tiles, tile, from, end, next, values);
        } else {
          return_tile<false>(tiles, tile, from, end, next, values);
        }
      }
    });
  });
}

}  // namespace espalier::kernels::ESPALIER_ISA
