// Causal attention by tiles. One (sequence, head) pair at a time, its q, k, v are packed to fp32
// panels that fit L2; score tiles of kQueryTile x kKeyTile live on the stack. Only tiles on or
// below the diagonal are computed. Source: Dao, FlashAttention-2 (2023), algorithms 1 and 2.
#include "src/kernels/cpu/attention_tile.h"
#include "src/kernels/cpu/table.h"

namespace espalier::kernels::ESPALIER_ISA {
namespace {

constexpr int64_t kQueryTile = 32;
constexpr int64_t kKeyTile = 128;
constexpr int64_t kPad = 16;  // widths and key counts are padded to whole vectors of any table

// Not std::fill and std::min: shared inline functions could be linked in another instruction set's
// form.
void set_zero(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    x[i] = 0.0F;
  }
}

int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }

int64_t padded(int64_t n) { return (n + kPad - 1) / kPad * kPad; }

/// The shape of one head and where its panels start.
struct Head {
  int64_t tokens;        ///< T
  int64_t width;         ///< D
  int64_t padded_width;  ///< D rounded up: row stride of [T, D] panels
  int64_t padded_tokens;
  int64_t panel() const { return padded_tokens * padded_width; }
};

Head head_of(const Tensor& qkv, int heads) {
  const int64_t width = qkv.cols() / 3 / heads;
  return {.tokens = qkv.shape[1],
          .width = width,
          .padded_width = padded(width),
          .padded_tokens = padded(qkv.shape[1])};
}

/// panel [T, D] = scale * x, x with rows `stride` apart; padding is zero.
template <class T>
void pack(const Head& head, const T* x, int64_t stride, float scale, float* panel) {
  for (int64_t t = 0; t < head.padded_tokens; ++t) {
    float* row = panel + t * head.padded_width;
    const int64_t filled = t < head.tokens ? head.width : 0;
    for (int64_t d = 0; d < filled; ++d) {
      row[d] = scale * load(x + t * stride + d);
    }
    set_zero(row + filled, head.padded_width - filled);
  }
}

/// panel [D, T] = transpose of x.
template <class T>
void pack_transposed(const Head& head, const T* x, int64_t stride, float* panel) {
  for (int64_t t0 = 0; t0 < head.padded_tokens; t0 += kPad) {
    for (int64_t d = 0; d < head.padded_width; ++d) {
      float* row = panel + d * head.padded_tokens;
      for (int64_t t = t0; t < t0 + kPad; ++t) {
        row[t] = t < head.tokens && d < head.width ? load(x + t * stride + d) : 0.0F;
      }
    }
  }
}

/// x [T, D] = scale * panel.
template <class T>
void unpack(const Head& head, const float* panel, float scale, T* x, int64_t stride) {
  for (int64_t t = 0; t < head.tokens; ++t) {
    for (int64_t d = 0; d < head.width; ++d) {
      store(x + t * stride + d, scale * panel[t * head.padded_width + d]);
    }
  }
}

/// A tile of queries [q0, q0 + queries) against keys [k0, k0 + keys); `keys` is padded to vectors,
/// and row i sees the first `visible(i)` of them.
struct Tile {
  int64_t q0, queries, k0, keys;
  int64_t visible(int64_t i) const { return minimum(q0 + i - k0 + 1, keys); }
};

Tile tile_at(const Head& head, int64_t q0, int64_t k0) {
  const int64_t queries = minimum(kQueryTile, head.tokens - q0);
  const int64_t keys = minimum(kKeyTile, q0 + queries - k0);
  return {.q0 = q0, .queries = queries, .k0 = k0, .keys = padded(keys)};
}

/// scores [queries, kKeyTile] = q kᵀ
void scores_of(const Head& head, const Tile& tile, const float* q, const float* kt, float* scores) {
  tile_product({.m = tile.queries,
                .n = tile.keys,
                .k = head.width,
                .a = q + tile.q0 * head.padded_width,
                .a_row = head.padded_width,
                .a_col = 1,
                .b = kt + tile.k0,
                .b_row = head.padded_tokens,
                .c = scores,
                .c_row = kKeyTile,
                .accumulate = false});
}

/// Running softmax of one row: scores become exp(score - maximum), `sum` and `maximum` are brought
/// up to date; returns the factor by which what was summed before must shrink.
float softmax_row(float* scores, int64_t visible, int64_t keys, float& maximum, float& sum) {
  float top = maximum;
  for (int64_t j = 0; j < visible; ++j) {
    top = scores[j] > top ? scores[j] : top;
  }
  const float shrink = __builtin_expf(maximum - top);
  float total = 0;
  for (int64_t j = 0; j < visible; ++j) {
    scores[j] = exp_approx(scores[j] - top);
  }
  constexpr int kParts = 16;  // a fixed number of partial sums, the same for every instruction set
  float parts[kParts] = {};
  int64_t j = 0;
  for (; j + kParts <= visible; j += kParts) {
    for (int p = 0; p < kParts; ++p) {
      parts[p] += scores[j + p];
    }
  }
  for (; j < visible; ++j) {
    parts[j % kParts] += scores[j];
  }
  for (float part : parts) {
    total += part;
  }
  set_zero(scores + visible, keys - visible);
  maximum = top;
  sum = sum * shrink + total;
  return shrink;
}

void forward_head(const Head& head, float* panels, float* out, float* lse) {
  const float* q = panels;
  const float* kt = q + head.panel();
  const float* v = kt + head.panel();
  alignas(64) float scores[kQueryTile * kKeyTile];
  for (int64_t q0 = 0; q0 < head.tokens; q0 += kQueryTile) {
    const int64_t queries = minimum(kQueryTile, head.tokens - q0);
    float maximum[kQueryTile];
    float sum[kQueryTile] = {};
    for (float& top : maximum) {
      top = -__builtin_inff();
    }
    for (int64_t k0 = 0; k0 < q0 + queries; k0 += kKeyTile) {
      const Tile tile = tile_at(head, q0, k0);
      scores_of(head, tile, q, kt, scores);
      for (int64_t i = 0; i < queries; ++i) {
        const float shrink =
            softmax_row(scores + i * kKeyTile, tile.visible(i), tile.keys, maximum[i], sum[i]);
        float* row = out + (q0 + i) * head.padded_width;
        for (int64_t d = 0; k0 > 0 && d < head.padded_width; ++d) {
          row[d] *= shrink;
        }
      }
      tile_product({.m = queries,
                    .n = head.padded_width,
                    .k = tile.keys,
                    .a = scores,
                    .a_row = kKeyTile,
                    .a_col = 1,
                    .b = v + k0 * head.padded_width,
                    .b_row = head.padded_width,
                    .c = out + q0 * head.padded_width,
                    .c_row = head.padded_width,
                    .accumulate = k0 > 0});
    }
    for (int64_t i = 0; i < queries; ++i) {
      float* row = out + (q0 + i) * head.padded_width;
      const float inverse = 1.0F / sum[i];
      for (int64_t d = 0; d < head.padded_width; ++d) {
        row[d] *= inverse;
      }
      lse[q0 + i] = maximum[i] + __builtin_logf(sum[i]);
    }
  }
}

/// Panels of the backward pass of one head, all fp32.
struct BackwardPanels {
  float *q, *k, *kt, *vt, *dout, *dq, *dk, *dv, *delta;
};

/// scores become probabilities; dp becomes the gradient of the scores.
void score_gradient(const Tile& tile, const float* lse, const float* delta, float* scores,
                    float* dp) {
  for (int64_t i = 0; i < tile.queries; ++i) {
    float* p = scores + i * kKeyTile;
    float* ds = dp + i * kKeyTile;
    const int64_t visible = tile.visible(i);
    const float row_lse = lse[tile.q0 + i];
    const float row_delta = delta[tile.q0 + i];
    for (int64_t j = 0; j < visible; ++j) {
      p[j] = exp_approx(p[j] - row_lse);
      ds[j] = p[j] * (ds[j] - row_delta);
    }
    set_zero(p + visible, tile.keys - visible);
    set_zero(ds + visible, tile.keys - visible);
  }
}

void backward_tile(const Head& head, const Tile& tile, const BackwardPanels& p, const float* lse) {
  alignas(64) float scores[kQueryTile * kKeyTile];
  alignas(64) float ds[kQueryTile * kKeyTile];
  const int64_t width = head.padded_width;
  scores_of(head, tile, p.q, p.kt, scores);
  scores_of(head, tile, p.dout, p.vt, ds);
  score_gradient(tile, lse, p.delta, scores, ds);
  // What is left are three products of the tile with [T, D] panels.
  TileProduct product{.m = tile.keys,
                      .n = width,
                      .k = tile.queries,
                      .a = scores,
                      .a_row = 1,
                      .a_col = kKeyTile,
                      .b = p.dout + tile.q0 * width,
                      .b_row = width,
                      .c = p.dv + tile.k0 * width,
                      .c_row = width,
                      .accumulate = true};
  tile_product(product);
  product.a = ds;
  product.b = p.q + tile.q0 * width;
  product.c = p.dk + tile.k0 * width;
  tile_product(product);
  product.m = tile.queries;
  product.k = tile.keys;
  product.a_row = kKeyTile;
  product.a_col = 1;
  product.b = p.k + tile.k0 * width;
  product.c = p.dq + tile.q0 * width;
  tile_product(product);
}

template <class T>
void forward(Stream& stream, const AttentionArgs& args) {
  const Head head = head_of(args.qkv, args.heads);
  const int64_t columns = args.qkv.cols() / 3;
  const float scale = 1.0F / __builtin_sqrtf(static_cast<float>(head.width));
  const int64_t pairs = args.qkv.shape[0] * args.heads;
  const int64_t floats = 4 * head.panel();
  auto* panels = reinterpret_cast<float*>(
      stream.workspace(static_cast<size_t>(stream.threads() * floats) * sizeof(float)));
  const T* qkv = args.qkv.get<T>();
  T* out = args.out.get<T>();
  float* lse = args.lse.get<float>();
#pragma omp parallel for num_threads(stream.threads()) schedule(static) if (pairs > 1)
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int64_t sequence = pair / args.heads;
    const int64_t first = (pair % args.heads) * head.width;
    const T* x = qkv + sequence * head.tokens * 3 * columns + first;
    float* mine = panels + thread_index() * floats;
    pack(head, x, 3 * columns, scale, mine);
    pack_transposed(head, x + columns, 3 * columns, mine + head.panel());
    pack(head, x + 2 * columns, 3 * columns, 1.0F, mine + 2 * head.panel());
    float* result = mine + 3 * head.panel();
    forward_head(head, mine, result, lse + pair * head.tokens);
    unpack(head, result, 1.0F, out + sequence * head.tokens * columns + first, columns);
  }
}

template <class T>
void pack_backward(const Head& head, const AttentionBackwardArgs& args, int64_t pair,
                   const BackwardPanels& p) {
  const int64_t columns = args.qkv.cols() / 3;
  const int64_t sequence = pair / args.heads;
  const int64_t first = (pair % args.heads) * head.width;
  const T* x = args.qkv.get<T>() + sequence * head.tokens * 3 * columns + first;
  const T* out = args.out.get<T>() + sequence * head.tokens * columns + first;
  const T* dout = args.dout.get<T>() + sequence * head.tokens * columns + first;
  const float scale = 1.0F / __builtin_sqrtf(static_cast<float>(head.width));
  pack(head, x, 3 * columns, scale, p.q);
  pack(head, x + columns, 3 * columns, 1.0F, p.k);
  pack_transposed(head, x + columns, 3 * columns, p.kt);
  pack_transposed(head, x + 2 * columns, 3 * columns, p.vt);
  pack(head, dout, columns, 1.0F, p.dout);
  for (int64_t t = 0; t < head.tokens; ++t) {
    float sum = 0;
    for (int64_t d = 0; d < head.width; ++d) {
      sum += load(out + t * columns + d) * load(dout + t * columns + d);
    }
    p.delta[t] = sum;
  }
  set_zero(p.dq, 3 * head.panel());  // dq, dk, dv lie side by side
}

template <class T>
void backward(Stream& stream, const AttentionBackwardArgs& args) {
  const Head head = head_of(args.qkv, args.heads);
  const int64_t columns = args.qkv.cols() / 3;
  const float scale = 1.0F / __builtin_sqrtf(static_cast<float>(head.width));
  const int64_t pairs = args.qkv.shape[0] * args.heads;
  const int64_t floats = 8 * head.panel() + head.padded_tokens;
  auto* panels = reinterpret_cast<float*>(
      stream.workspace(static_cast<size_t>(stream.threads() * floats) * sizeof(float)));
  const float* lse = args.lse.get<float>();
  T* dqkv = args.dqkv.get<T>();
#pragma omp parallel for num_threads(stream.threads()) schedule(static) if (pairs > 1)
  for (int64_t pair = 0; pair < pairs; ++pair) {
    float* mine = panels + thread_index() * floats;
    auto panel = [&](int i) { return mine + i * head.panel(); };
    const BackwardPanels p{panel(0), panel(1), panel(2), panel(3), panel(4),
                           panel(5), panel(6), panel(7), panel(8)};
    pack_backward<T>(head, args, pair, p);
    for (int64_t q0 = 0; q0 < head.tokens; q0 += kQueryTile) {
      for (int64_t k0 = 0; k0 < q0 + kQueryTile && k0 < head.tokens; k0 += kKeyTile) {
        backward_tile(head, tile_at(head, q0, k0), p, lse + pair * head.tokens);
      }
    }
    T* dx =
        dqkv + (pair / args.heads) * head.tokens * 3 * columns + (pair % args.heads) * head.width;
    unpack(head, p.dq, scale, dx, 3 * columns);
    unpack(head, p.dk, 1.0F, dx + columns, 3 * columns);
    unpack(head, p.dv, 1.0F, dx + 2 * columns, 3 * columns);
  }
}

}  // namespace

void attention(Stream& stream, const AttentionArgs& args) {
  if (args.qkv.dtype == DType::fp32) {
    forward<float>(stream, args);
  } else {
    forward<bf16>(stream, args);
  }
}

void attention_backward(Stream& stream, const AttentionBackwardArgs& args) {
  if (args.qkv.dtype == DType::fp32) {
    backward<float>(stream, args);
  } else {
    backward<bf16>(stream, args);
  }
}

}  // namespace espalier::kernels::ESPALIER_ISA
