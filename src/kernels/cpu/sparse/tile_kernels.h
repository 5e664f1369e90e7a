#pragma once
// The inner loops of the sparse products over one tile (tile.h), and the packing of
// activations for them.
//
// A packed row is one feature of a block of tokens: its values are contiguous, as lanes of vectors.
// In fp32 a lane is a token. In bf16, if the machine multiplies pairs of bf16 fast, a lane is two
// tokens: SDDMM sums their two products in one instruction. Products with W take two kept elements
// of a row at once: the two packed rows are interleaved, so that a lane holds both features of one
// token, and multiplied by the pair of values.
//
// The bottleneck is loads: Intel cores have two per cycle, Zen 4 one of 512 bits. So one load reads
// eight columns, and early: an activation's load depends on its column, and a load that is issued
// only after those before it are done stalls all that follow.
#include <cstring>

#include "src/kernels/cpu/simd/loops.h"
#include "src/kernels/cpu/simd/vector.h"
#include "src/kernels/cpu/sparse/tile.h"

namespace espalier::kernels::ESPALIER_ISA {

inline constexpr int64_t kMostTokens = 128;  ///< in a packed row

/// A part of the activations of a block of tokens.
struct Packing {
  const void* const* rows;  ///< of each token; null: zeros
  int64_t feature, features;
};

inline const void* row_bytes(const Tensor& x, int64_t row) {
  return static_cast<const std::byte*>(x.data) +
         row * x.stride * static_cast<int64_t>(size_of(x.dtype));
}

struct SparseKernels {
  int64_t lane_tokens;  ///< 1 or 2
  TileValues values;    ///< of the tiles in products with W
  int64_t vectors;      ///< of a packed row in products with W
  int64_t dot_vectors;  ///< of a packed row in SDDMM
  void (*pack)(const Packing& what, int64_t vectors, float* out);
  /// band += the product of the tile with its panel of packed x. A row of the band has `vectors`
  /// times lane_tokens vectors; lane_token (band.h) is the order of the tokens.
  void (*add_tile)(const Tiles& tiles, int64_t tile, const float* x, float* band);
  /// results (+)= the dot products of packed dy and x at the tile's elements.
  void (*dot_tile)(const Tiles& tiles, int64_t tile, const struct DotOperands& operands);
};

struct DotOperands {
  const float* dy;  ///< packed rows of the tile
  const float* x;   ///< packed panel
  bool add;
  float* results;  ///< in the order of the tiles
};

/// Kernels of a product with activations of this type. CMake chooses tile_kernels_plain.cpp or
/// tile_kernels_avx512bf16.cpp.
SparseKernels sparse_kernels(DType dtype);

[[gnu::always_inline]] inline uint64_t eight_columns(const uint8_t* columns) {
  uint64_t eight;
  std::memcpy(&eight, columns, sizeof(eight));
  return eight;
}

/// fp32 arithmetic; 16-bit activations are widened when packed.
struct FloatMath {
  static constexpr int kLaneTokens = 1;
  static constexpr int kElements = 1;  ///< kept elements of a row that `add` takes
  using Value = float;                 ///< their values
  static constexpr int kVectors = kLanes == 16 ? 4 : 8;
  static constexpr int kDotVectors = 4;

  /// n features of the tokens of a lane. Whole: every token exists.
  template <bool Whole, class T>
  [[gnu::always_inline]] static Vector read(const T* const* rows, int64_t feature, int64_t n) {
    return Whole || rows[0] != nullptr ? read_vector(rows[0] + feature, n) : Vector{};
  }
  /// sum[0..kLaneTokens) += value * x.
  [[gnu::always_inline]] static void add(Vector (&sum)[1], float value, const Vector (&x)[1]) {
    sum[0] += value * x[0];
  }
  [[gnu::always_inline]] static Vector dot(Vector sum, Vector a, Vector b) { return sum + a * b; }
};

/// out[f * row + v kLanes + lane] for f < features, by squares of kLanes features and lanes.
template <class Math, class T>
void pack_rows(const Packing& p, int64_t vectors, float* out) {
  constexpr int64_t kStep = kLanes * Math::kLaneTokens;
  constexpr int64_t kAhead = 8 * kLanes;
  const int64_t row = vectors * kLanes;
  for (int64_t v = 0; v < vectors; ++v) {
    const auto* rows = reinterpret_cast<const T* const*>(p.rows) + v * kStep;
    bool whole = true;
    for (int64_t i = 0; i < kStep; ++i) {
      whole = whole && rows[i] != nullptr;
    }
    for (int64_t f = 0; f < p.features; f += kLanes) {
      const int64_t width = least(kLanes, p.features - f);
      const int64_t feature = p.feature + f;
      float* to = out + f * row + v * kLanes;
      Vector square[kLanes];
      if (whole && width == kLanes) {
        // Rows are pages apart: hardware prefetchers do not follow sixteen at once.
        for (int64_t i = 0; i < kStep; ++i) {
          __builtin_prefetch(rows[i] + feature + kAhead);
        }
        for (int64_t i = 0; i < kLanes; ++i) {
          square[i] = Math::template read<true>(rows + i * Math::kLaneTokens, feature, kLanes);
        }
        transpose(square);
        for (int i = 0; i < kLanes; ++i) {
          write_vector(to + i * row, square[i]);
        }
        continue;
      }
      for (int64_t i = 0; i < kLanes; ++i) {
        square[i] = Math::template read<false>(rows + i * Math::kLaneTokens, feature, width);
      }
      transpose(square);
      for (int64_t i = 0; i < width; ++i) {
        write_vector(to + i * row, square[i]);
      }
    }
  }
}

/// A group of rows with `count` elements each, and pointers to its columns and those that follow.
template <int Rows>
struct Group {
  const uint8_t* columns;
  int64_t count;
  uint64_t eight;  ///< the first eight columns
};

/// Calls body(e, r, columns) for the elements e to e + Elements - 1 of each row r, with columns in
/// the bytes 0, Rows, 2 Rows, ... of `columns`. Elements divides the group's count. Leaves the next
/// group's first columns in `eight`.
template <int Elements, int Rows, class Body>
[[gnu::always_inline]] inline void for_elements(Group<Rows>& g, const Body& body) {
  constexpr int kStep = 8 / Rows;
  const auto visit = [&](int64_t e, uint64_t & columns) __attribute__((always_inline)) {
    for (int r = 0; r < Rows; ++r, columns >>= 8) {
      body(e, r, columns);
    }
    columns = Elements == 1 ? columns : columns >> (8 * Rows * (Elements - 1));
  };
  uint64_t eight = g.eight;
  const uint8_t* next = g.columns + 8;
  g.columns += Rows * g.count;
  g.eight = eight_columns(g.columns);
  int64_t e = 0;
  for (; e + kStep <= g.count; e += kStep, next += 8) {
    const uint64_t coming = eight_columns(next);
#pragma GCC unroll 8
    for (int i = 0; i < kStep; i += Elements) {
      visit(e + i, eight);
    }
    eight = coming;
  }
  for (; e < g.count; e += Elements) {
    visit(e, eight);
  }
}

/// Visits the runs of a tile in groups of 2 rows and 1: visit(Group<Rows>&, order).
template <class Visit>
[[gnu::always_inline]] inline void for_groups(const Tiles& tiles, int64_t tile,
                                              const Visit& visit) {
  const uint16_t* order = tiles.order + tile * tiles.block_rows;
  const uint8_t* columns = tiles.columns + tiles.first[tile];
  uint64_t eight = eight_columns(columns);
  const auto take = [&](auto rows, int64_t count) __attribute__((always_inline)) {
    Group<rows.value> group{columns, count, eight};
    visit(group, order);
    columns = group.columns;
    eight = group.eight;
    order += rows.value;
  };
  for (const Run* run = tiles.runs_of(tile); run->rows > 0; ++run) {
    int64_t left = run->rows;
    for (; left >= 2; left -= 2) {
      take(std::integral_constant<int, 2>{}, run->count);
    }
    if (left == 1) {
      take(std::integral_constant<int, 1>{}, run->count);
    }
  }
}

template <class Math>
void add_tile(const Tiles& tiles, int64_t tile, const float* x, float* band) {
  constexpr int kVectors = Math::kVectors;
  constexpr int kPacked = kVectors * kLanes;
  constexpr int kSums = Math::kLaneTokens;
  constexpr int kElements = Math::kElements;
  using Value = typename Math::Value;
  const auto* values = static_cast<const Value*>(tiles.values) + tiles.first[tile] / kElements;
  for_groups(tiles, tile, [&]<int Rows>(Group<Rows>& group, const uint16_t* order) {
    float* y[Rows];
    Vector sum[Rows][kVectors][kSums];
    for (int r = 0; r < Rows; ++r) {
      y[r] = band + int64_t{order[r]} * (kPacked * kSums);
      for (int v = 0; v < kVectors * kSums; ++v) {
        sum[r][v / kSums][v % kSums] = read_vector(y[r] + v * kLanes);
      }
    }
    if constexpr (kElements == 2) {
      // The next group's sums, from L2. Behind the last group this is some other address.
      for (int r = 0; r < Rows; ++r) {
        const float* next = band + int64_t{order[Rows + r]} * (kPacked * kSums);
        for (int v = 0; v < kVectors * kSums; ++v) {
          __builtin_prefetch(next + v * kLanes, 1);
        }
      }
    }
    const int64_t count = group.count / kElements;
    for_elements<kElements>(
        group, [&](int64_t e, int r, uint64_t columns) __attribute__((always_inline)) {
          const float* from[kElements];
          for (int i = 0; i < kElements; ++i, columns >>= 8 * Rows) {
            from[i] = x + static_cast<int64_t>(columns & 255U) * kPacked;
          }
          const Value value = values[r * count + e / kElements];
          for (int v = 0; v < kVectors; ++v) {
            Vector features[kElements];
            for (int i = 0; i < kElements; ++i) {
              features[i] = read_vector(from[i] + v * kLanes);
            }
            Math::add(sum[r][v], value, features);
          }
        });
    values += Rows * count;
    for (int r = 0; r < Rows; ++r) {
      for (int v = 0; v < kVectors * kSums; ++v) {
        write_vector(y[r] + v * kLanes, sum[r][v / kSums][v % kSums]);
      }
    }
  });
}

/// Packed dy of a group of rows, in registers.
template <class Math>
struct SampledRows {
  static constexpr int kVectors = Math::kDotVectors;
  static constexpr int64_t kPacked = kVectors * kLanes;
  Vector dy[kSampledRows][kVectors];

  [[gnu::always_inline]] SampledRows(const float* from, const uint16_t* order) {
    for (int r = 0; r < kSampledRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        dy[r][v] = read_vector(from + int64_t{order[r]} * kPacked + v * kLanes);
      }
    }
  }

  /// One element of each row, at the columns in the bytes: lane r of each quarter is a partial dot
  /// product of row r.
  [[gnu::always_inline]] Vector dots(const float* x, uint64_t columns) const {
    Vector sum[kSampledRows];
    for (int r = 0; r < kSampledRows; ++r, columns >>= 8) {
      const float* from = x + static_cast<int64_t>(columns & 255U) * kPacked;
      sum[r] = Vector{};
      for (int v = 0; v < kVectors; ++v) {
        sum[r] = Math::dot(sum[r], dy[r][v], read_vector(from + v * kLanes));
      }
    }
    return quarter_sums(sum[0], sum[1], sum[2], sum[3]);
  }

  /// n <= kLanes / 4 elements of each row, by element and row; the rest is zero.
  [[gnu::always_inline]] Vector results(const float* x, const uint8_t* columns, int64_t n) const {
    constexpr int kQuarters = kLanes / 4;
    Vector parts[kQuarters];
    uint64_t eight = 0;
#pragma GCC unroll 4
    for (int q = 0; q < kQuarters; ++q, eight >>= 32) {
      eight = q % 2 == 0 ? eight_columns(columns + q * kSampledRows) : eight;
      parts[q] = q < n ? dots(x, eight) : Vector{};
    }
    return across_quarters(parts);
  }
};

/// The lanes of as many elements as a vector has quarters are reduced together, in registers. The
/// last write of a group may exceed it; the next group overwrites the excess.
template <class Math>
void dot_tile(const Tiles& tiles, int64_t tile, const DotOperands& o) {
  constexpr int64_t kStep = kLanes / 4;
  const uint16_t* order = tiles.order + tile * tiles.block_rows;
  const uint8_t* columns = tiles.columns + tiles.first[tile];
  float* results = o.results + tiles.first[tile];
  const float* x = o.x;
  const bool add = o.add;
  const auto put = [&](Vector sums) __attribute__((always_inline)) {
    write_vector(results, add ? read_vector(results) + sums : sums);
  };
  for (const Run* run = tiles.runs_of(tile); run->rows > 0; ++run) {
    const int64_t tail = run->count % kStep;
    for (const uint16_t* end = order + run->rows; order != end; order += kSampledRows) {
      const SampledRows<Math> rows(o.dy, order);
      for (int64_t left = run->count; left >= kStep; left -= kStep) {
        put(rows.results(x, columns, kStep));
        columns += kStep * kSampledRows;
        results += kStep * kSampledRows;
      }
      if (tail > 0) {
        put(rows.results(x, columns, tail));
        columns += tail * kSampledRows;
        results += tail * kSampledRows;
      }
    }
  }
}

template <class Math, class T>
[[gnu::always_inline]] inline SparseKernels kernels_of() {
  return {.lane_tokens = Math::kLaneTokens,
          .values = Math::kElements == 2 ? TileValues::bf16_pairs : TileValues::fp32,
          .vectors = Math::kVectors,
          .dot_vectors = Math::kDotVectors,
          .pack = pack_rows<Math, T>,
          .add_tile = add_tile<Math>,
          .dot_tile = dot_tile<Math>};
}

}  // namespace espalier::kernels::ESPALIER_ISA
