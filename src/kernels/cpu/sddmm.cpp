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

#include "src/kernels/cpu/sparse_pack.h"
#include "src/kernels/cpu/sparse_tile.h"
#include "src/kernels/cpu/support.h"
#include "src/kernels/cpu/table.h"
#include "src/kernels/verify.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int kVectors = 4;
constexpr int kTokens = kVectors * kLanes;
static_assert(kRowsTogether == 4);

/// Partial sums of the dot products of Rows <= 4 rows of dy with their `count` columns of x: vector
/// e of `parts` holds, in lane r of each quarter, a part of that of row r and its column e.
template <int Rows>
[[gnu::always_inline]] inline void dot_rows(const float* const (&dy)[Rows], const float* x,
                                            const uint8_t* columns, int64_t count, float* parts) {
  using namespace shuffles;
  Vector d[Rows][kVectors];
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      d[r][v] = read_vector(dy[r] + v * kLanes);
    }
  }
  for (int64_t e = 0; e < count; ++e) {
    Vector sum[4] = {};
    for (int r = 0; r < Rows; ++r) {
      const float* from = x + int64_t{columns[r * count + e]} * kTokens;
      sum[r] = d[r][0] * read_vector(from);
      for (int v = 1; v < kVectors; ++v) {
        sum[r] += d[r][v] * read_vector(from + v * kLanes);
      }
    }
    write_vector(parts + e * kLanes, quarter_sums(sum[0], sum[1], sum[2], sum[3]));
  }
}

/// results[e rows + r] (+)= the sums in `parts`. Four rows: may add zeros to, or write, a vector
/// beyond the end.
template <int Rows>
[[gnu::always_inline]] inline void add_parts(float* parts, int64_t count, bool add,
                                             float* results) {
  constexpr int kQuarters = kLanes / 4;
  for (int64_t e = count; e < count + kQuarters - 1; ++e) {
    write_vector(parts + e * kLanes, Vector{});
  }
  for (int64_t e = 0; e < count; e += kQuarters) {
    Vector fours[kQuarters];
    for (int q = 0; q < kQuarters; ++q) {
      fours[q] = read_vector(parts + (e + q) * kLanes);
    }
    const Vector sums = across_quarters(fours);
    if constexpr (Rows == 4) {
      float* to = results + e * 4;
      write_vector(to, add ? read_vector(to) + sums : sums);
    } else {
      float lanes[kLanes];
      write_vector(lanes, sums);
      for (int64_t i = 0; i < least(kQuarters, count - e); ++i) {
        for (int r = 0; r < Rows; ++r) {
          float& to = results[(e + i) * Rows + r];
          to = (add ? to : 0.0F) + lanes[4 * i + r];
        }
      }
    }
  }
}

struct Group {
  const float* dy;  ///< packed, of the tile's rows
  const float* x;   ///< packed, of the panel
  float* parts;     ///< [kPanel + 3, kLanes]
  bool add;
};

template <int Rows>
[[gnu::always_inline]] inline void add_group(const Group& g, const uint16_t* order,
                                             const uint8_t* columns, int64_t count,
                                             float* results) {
  const float* dy[Rows];
  for (int r = 0; r < Rows; ++r) {
    dy[r] = g.dy + order[r] * kTokens;
  }
  dot_rows<Rows>(dy, g.x, columns, count, g.parts);
  add_parts<Rows>(g.parts, count, g.add, results);
}

void add_tile(const Tiles& tiles, int64_t tile, const Group& group, float* results) {
  const uint8_t* columns = tiles.columns + tiles.first[tile];
  const uint16_t* order = tiles.order + tile * tiles.block_rows;
  results += tiles.first[tile];
  for (const Run* run = tiles.runs + tile * (kPanel + 1); run->rows > 0; ++run) {
    const int64_t count = run->count;
    int64_t left = run->rows;
    for (; left >= 4; left -= 4, order += 4, columns += 4 * count, results += 4 * count) {
      add_group<4>(group, order, columns, count, results);
    }
    switch (left) {
      case 3:
        add_group<3>(group, order, columns, count, results);
        break;
      case 2:
        add_group<2>(group, order, columns, count, results);
        break;
      case 1:
        add_group<1>(group, order, columns, count, results);
        break;
      default:
        break;
    }
    order += left;
    columns += left * count;
    results += left * count;
  }
}

struct Memory {
  TileMemory tiles;
  float* results;  ///< in the order of the tiles
  float *dy, *x;   ///< packed
};

Memory carve(Carver& carver, const SparseMatrix& weight, int threads) {
  Memory m{.tiles = carve_tiles(carver, weight, TileUse::sampled, threads)};
  m.results = carver.take<float>(weight.positions.count + (m.tiles.tiles.tiles() + 1) * kTileSlack);
  m.dy = carver.take<float>(weight.rows * kTokens);
  m.x = carver.take<float>(weight.cols * kTokens);
  return m;
}

/// One thread's share of a block of tokens: features to pack, or tiles, by their elements.
template <class T>
void work(const SddmmArgs& args, const Memory& m, int64_t token, int64_t thread, int64_t threads) {
  constexpr int64_t kPiece = 64;
  alignas(64) float parts[(kPanel + 4) * kLanes];
  const Tiles& tiles = m.tiles.tiles;
  const auto pack = [&](const Tensor& from, float* to) {
    for (int64_t f = thread * kPiece; f < from.cols(); f += threads * kPiece) {
      pack_tokens<T>(from, token, kTokens, f, least(kPiece, from.cols() - f), to + f * kTokens);
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
        add_tile(
            tiles, tile,
            {m.dy + b * tiles.block_rows * kTokens, m.x + p * kPanel * kTokens, parts, token > 0},
            m.results);
      }
    }
  }
#pragma omp barrier
}

template <class T>
void sample(Stream& stream, const SddmmArgs& args, const Memory& m) {
  const int64_t tokens = args.x.rows();
  const int64_t useful = least(stream.threads(), args.weight.positions.count * tokens / kGrain);
  const auto team = static_cast<int>(most(1, useful));
#pragma omp parallel num_threads(team)
  {
    const int thread = omp_get_thread_num();
    const int threads = omp_get_num_threads();
    for (int64_t token = 0; token < tokens; token += kTokens) {
      work<T>(args, m, token, thread, threads);
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
  Carver sizes;
  carve(sizes, args.weight, threads);
  Carver carver{cpu::workspace(stream, sizes.used)};
  Memory memory = carve(carver, args.weight, threads);
  make_tiles(memory.tiles, args.weight, TileUse::sampled, threads);
  if (args.x.rows() == 0) {
    std::memset(memory.results, 0, static_cast<size_t>(count) * sizeof(float));
  }
  with_type(args.x.dtype, [&](auto type) { sample<decltype(type)>(stream, args, memory); });
  return_values(memory.tiles, memory.results, args.weight, args.accumulate, threads);
}

}  // namespace espalier::kernels::ESPALIER_ISA
