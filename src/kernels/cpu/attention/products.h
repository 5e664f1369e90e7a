#pragma once
// Tiles of attention and their products: scores = rows of queries against keys, and sums of a tile
// with a panel over its keys or its queries. The code is the same for every precision; TileMath
// (tile.h) and the panels' words (panels.h) differ.
#include "src/kernels/cpu/attention/panels.h"

namespace espalier::kernels::ESPALIER_ISA {

struct FloatProduct {
  [[gnu::always_inline]] static Vector add(Vector sum, float word, Vector b) {
    return sum + word * b;
  }
};

inline TileWords rows_as_they_are(const TileValues& tile, float*) {
  return {.words = tile.values, .row = kKeyTile, .col = 1};
}
inline TileWords columns_as_they_are(const TileValues& tile, float*) {
  return {.words = tile.values, .row = 1, .col = kKeyTile};
}

inline constexpr TileMath kFloatMath{.elements = 1,
                                     .product = tile_product<FloatProduct>,
                                     .along_keys = rows_as_they_are,
                                     .along_queries = columns_as_they_are};

inline const TileMath& math_for(DType dtype) {
  const TileMath* pairs = dtype == DType::bf16 ? pair_math() : nullptr;
  return pairs != nullptr ? *pairs : kFloatMath;
}

/// Heads and rows of AttentionArgs and AttentionBackwardArgs. A group is the query heads that share
/// one head of k and v.
struct Layout {
  int64_t heads, kv_heads, width, tokens;

  [[gnu::always_inline]] int64_t group() const { return heads / kv_heads; }
  [[gnu::always_inline]] int64_t qkv_columns() const { return (heads + 2 * kv_heads) * width; }
  [[gnu::always_inline]] int64_t out_columns() const { return heads * width; }
  /// The first element of a head in qkv and dqkv, and in out and dout.
  [[gnu::always_inline]] int64_t query(int64_t sequence, int64_t head) const {
    return sequence * tokens * qkv_columns() + head * width;
  }
  [[gnu::always_inline]] int64_t key(int64_t sequence, int64_t kv_head) const {
    return query(sequence, heads + kv_head);
  }
  [[gnu::always_inline]] int64_t value(int64_t sequence, int64_t kv_head) const {
    return query(sequence, heads + kv_heads + kv_head);
  }
  [[gnu::always_inline]] int64_t out(int64_t sequence, int64_t head) const {
    return sequence * tokens * out_columns() + head * width;
  }
};

template <class Args>
Layout layout_of(const Args& args) {
  const int64_t kv_heads = args.kv_heads == 0 ? args.heads : args.kv_heads;
  return {.heads = args.heads,
          .kv_heads = kv_heads,
          .width = args.qkv.cols() / (args.heads + 2 * kv_heads),
          .tokens = args.qkv.shape[1]};
}

template <class Args>
Head head_of(const Args& args, const Layout& layout, const TileMath& math) {
  const float scale =
      args.scale > 0 ? args.scale : 1.0F / __builtin_sqrtf(static_cast<float>(layout.width));
  return {.tokens = layout.tokens,
          .width = layout.width,
          .padded_tokens = padded(layout.tokens),
          .padded_width = padded(layout.width),
          .elements = math.elements,
          .scale = scale,
          .causal = args.causal,
          .window = args.window};
}

/// A tile of queries [q0, q0 + queries) against keys [k0, k0 + keys); `keys` is padded to vectors,
/// and row i sees keys [first(i), visible(i)) of them, which may be none if there is a window.
struct Tile {
  int64_t q0, queries, k0, keys;
  int64_t seen;  ///< number of keys that each row sees; 0: causal, row i sees keys up to its own
  int64_t window;
  int64_t visible(int64_t i) const { return seen > 0 ? seen : least(q0 + i - k0 + 1, keys); }
  /// kWindow: `window` > 0.
  template <bool kWindow>
  int64_t first(int64_t i) const {
    return kWindow ? least(most(0, q0 + i - window + 1 - k0), visible(i)) : 0;
  }
};

/// Tiles of keys end at multiples of kKeyTile.
inline Tile tile_at(const Head& head, int64_t q0, int64_t k0) {
  const int64_t queries = least(kQueryTile, head.tokens - q0);
  const int64_t keys = least(kKeyTile - k0 % kKeyTile, head.keys_before(q0 + queries) - k0);
  return {.q0 = q0,
          .queries = queries,
          .k0 = k0,
          .keys = padded(keys),
          .seen = head.causal ? 0 : keys,
          .window = head.window};
}
inline int64_t tile_after(int64_t k0) { return (k0 / kKeyTile + 1) * kKeyTile; }

/// The three products of a tile of one head.
struct Products {
  const Head& head;
  const TileMath& math;

  /// scores [queries, kKeyTile] = q kᵀ: rows against a transposed panel.
  void scores(const Tile& tile, const float* q, const float* kt, float* scores) const {
    math.product({.m = tile.queries,
                  .n = tile.keys,
                  .k = head.words(),
                  .a = q + tile.q0 * head.row(),
                  .a_row = head.row(),
                  .a_col = 1,
                  .b = kt + tile.k0,
                  .b_row = head.padded_tokens,
                  .c = scores,
                  .c_row = kKeyTile,
                  .accumulate = false});
  }
  /// Rows from q0 of `out` (+)= tile * joined keys.
  void along_keys(const Tile& tile, const TileWords& left, const float* joined, float* out,
                  bool accumulate) const {
    math.product({.m = tile.queries,
                  .n = head.padded_width,
                  .k = tile.keys / head.elements,
                  .a = left.words,
                  .a_row = left.row,
                  .a_col = left.col,
                  .b = joined + tile.k0 * head.row(),
                  .b_row = head.padded_width,
                  .c = out + tile.q0 * head.padded_width,
                  .c_row = head.padded_width,
                  .accumulate = accumulate});
  }
  /// Rows from k0 of `out` += tileᵀ * joined queries.
  void along_queries(const Tile& tile, const TileWords& left, const float* joined,
                     float* out) const {
    math.product({.m = tile.keys,
                  .n = head.padded_width,
                  .k = divide_up(tile.queries, head.elements),
                  .a = left.words,
                  .a_row = left.row,
                  .a_col = left.col,
                  .b = joined + tile.q0 * head.row(),
                  .b_row = head.padded_width,
                  .c = out + tile.k0 * head.padded_width,
                  .c_row = head.padded_width,
                  .accumulate = true});
  }
};

}  // namespace espalier::kernels::ESPALIER_ISA
